import pytest
import torch

from bamctl.models.training.muon import Muon, orthogonalised


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_a_step_has_singular_values_near_one_and_the_gradients_directions(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    step = orthogonalised(matrix)
    assert step.shape == matrix.shape
    values = torch.linalg.svdvals(step)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    kept = u.T @ step @ vh.T
    assert torch.allclose(kept, torch.diag(kept.diagonal()), atol=1e-4)
    assert (kept.diagonal() > 0.6).all()


def test_it_agrees_with_torchs_own_to_bfloat16():
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(24, 12, generator=generator)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimisers = [
        Muon([ours], lr=0.1, weight_decay=0.2),
        torch.optim.Muon([theirs], lr=0.1, weight_decay=0.2),
    ]
    for _ in range(5):
        gradient = torch.randn(24, 12, generator=generator)
        for parameter, optimiser in zip((ours, theirs), optimisers, strict=True):
            parameter.grad = gradient.clone()
            optimiser.step()
    moved = (theirs - start).norm()
    assert moved > 1
    assert (ours - theirs).norm() < 0.05 * moved


def test_a_gradient_of_zero_moves_nothing_but_the_decay():
    parameter = torch.nn.Parameter(torch.ones(3, 5))
    parameter.grad = torch.zeros(3, 5)
    Muon([parameter], lr=0.1, weight_decay=0.5).step()
    assert torch.allclose(parameter, torch.full((3, 5), 0.95))


def test_a_parameter_without_a_gradient_stays():
    parameter = torch.nn.Parameter(torch.ones(3, 5))
    Muon([parameter], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(parameter, torch.ones(3, 5))
