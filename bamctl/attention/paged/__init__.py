"""Attention over keys and values that lie in pages, as a server of many sequences keeps them.

`bamctl.attention.paged.cpu` is plain PyTorch, `bamctl.attention.paged.triton` a kernel for GPUs. Both have a
function `paged_attention` of one signature, which computes for every sequence what
`bamctl.attention.reference` defines, with the keys from position 0 on.

Shapes:

    T  query tokens of all sequences, one sequence after another
    B  sequences
    P  pages: of the pool, or of a sequence at most
    S  slots of a page, each for one token
    H  query heads
    G  key-value heads, H a multiple of G
    D  head size

Where the token at position j of sequence b lies: slot j % S of page ``pages_BP[b, j // S]``. What is in slots
behind a sequence's last token, and in the table behind its last page, is garbage and may be NaN.
"""
