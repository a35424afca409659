"""Results as one HTML page, which needs no network, no server, and nothing but a browser.

Python computes every number and writes every text of one; the scripts choose what is shown and draw it. They
are a few hundred lines of their own: a library for charts, of several MB, would leave no room for samples.
"""
