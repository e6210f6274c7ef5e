"""Steps inside of coarse blocks, and steps beside the blocks: against autograd by hand, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from walkback.errors import AnatomyError

D = 8
STATES: list[Tensor] = []


def site(h: Tensor) -> Tensor:
    STATES.append(h)
    return h


class Conv(nn.Module):
    """x + f(x), or with a convolution as its skip."""

    def __init__(self, wide: int, out: int = 0, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(wide, out or wide, 3, stride, 1)
        self.second = nn.Conv2d(out or wide, out or wide, 3, 1, 1)
        self.skip = nn.Conv2d(wide, out, 1, stride) if out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.second(F.relu(self.first(F.relu(x))))


class Stage(nn.Module):
    """A convolution, a pooling, and two residual blocks that are attributes."""

    def __init__(self, wide: int, out: int, first: bool) -> None:
        super().__init__()
        self.second = Conv(out)  # registered before the one that is called before it
        self.conv, self.first = nn.Conv2d(wide, out, 3, padding=1), Conv(out)
        self.begins = first

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv(x), 3, 2, 1)
        x = site(x) if self.begins else x
        return site(self.second(site(self.first(x))))


class Stages(nn.Module):
    def __init__(self, stem: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 3, padding=1) if stem else nn.Identity()
        self.seqs = nn.ModuleList([Stage(3, 6, True), Stage(6, D, False)])
        self.leave = nn.Linear(D, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.seqs:
            x = stage(x)
        return self.leave(F.relu(x).mean((2, 3)))


class WrittenOut(nn.Module):
    """A stage that writes its sums out: nothing inside of it is a step."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.conv, self.f, self.g = nn.Conv2d(wide, out, 3, 2, 1), nn.Conv2d(out, out, 1), nn.Conv2d(out, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = x + self.f(x).tanh()
        return x + self.g(x).tanh()


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, 16), nn.Linear(16, D)

    def forward(self, h: Tensor) -> Tensor:
        return site(h + self.down(F.gelu(self.up(h))))


class Hybrid(nn.Module):
    """Residual convolutions, then a list of blocks on their pixels; what is read alone are the latter."""

    def __init__(self, convs: list[nn.Module], late: list[nn.Module]) -> None:
        super().__init__()
        self.stem, self.convs = nn.Conv2d(3, D, 3, padding=1), nn.ModuleList(convs)
        self.blocks, self.late = nn.ModuleList([Mlp() for _ in range(3)]), nn.ModuleList(late)
        self.head = nn.Linear(D, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv in self.convs:
            x = conv(x)
        h = site(x.flatten(2).transpose(1, 2))
        for block in self.blocks:
            h = block(h)
        for block in self.late:
            h = block(h)
        return self.head(h.mean(1))


class WrittenOutBefore(Hybrid):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv in self.convs:
            x = x + conv(x).tanh()
        h = site(x.flatten(2).transpose(1, 2))
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


def pictures() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(5, 3, 8, 8, generator=generator, dtype=torch.float64), torch.arange(5) % 4


def by_hand(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[list[float], list[float]]:
    STATES.clear()
    x, y = batch
    losses = F.cross_entropy(model(x), y, reduction="none")
    states = [*STATES]
    grads = torch.autograd.grad(losses.sum(), states)

    def size(h: Tensor) -> float:
        norms = h.norm(dim=-1).mean(1) if h.ndim == 3 else h.flatten(1).norm(dim=1)
        return float(norms.mean())

    return [size(h.detach()) for h in states], [size(g) / 128 for g in grads]


def measured(model: nn.Module, **more: Any) -> Any:
    return wb.measure(model, [pictures()], **more)


def said(m: Any, code: str) -> list[dict[str, Any]]:
    return [dict(note.values) for note in m.notes if note.code == code]


@pytest.mark.parametrize("stem", [False, True], ids=["given the input", "no skip passes a stage"])
def test_stages_that_begin_with_weights_give_way_to_the_steps_inside_in_the_order_of_their_calls(stem: bool) -> None:
    torch.manual_seed(0)
    model = Stages(stem).double().eval()
    m = measured(model)
    h, g = by_hand(model, pictures())
    assert m.h_norm == pytest.approx(h, rel=1e-9)
    assert m.g_norm == pytest.approx(g, rel=1e-9)
    (guess,) = said(m, "guessed")
    blocks = [f"seqs.{i}.{name}" for i in range(2) for name in ("first", "second")]
    assert f"Anatomy.of(model, blocks={blocks})" in guess["what"]
    named = measured(model, anatomy={"blocks": blocks})
    assert named.g_norm == m.g_norm


def test_the_input_is_no_site_of_guessed_stages_without_steps_inside() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(WrittenOut(3, 6), WrittenOut(6, D), nn.Flatten(), nn.Linear(4 * D, 4)).double()
    with pytest.raises(AnatomyError, match="begins with trained weights"):
        measured(model)
    named = measured(model, anatomy={"blocks": ["0", "1"]})  # who names them decides
    assert named.h_norm[0] == pytest.approx(float(pictures()[0].flatten(1).norm(dim=1).mean()), rel=1e-9)


def test_a_first_block_whose_skip_has_a_weight_reads_the_input_as_before() -> None:
    torch.manual_seed(0)
    blocks = [Conv(3, 6, 2), Conv(6, D, 2), Conv(D, D)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * D, 4)).double()
    assert len(measured(model).h_norm) == 4


def test_residual_steps_before_the_first_block_are_named_with_a_line_that_reads_all() -> None:
    torch.manual_seed(0)
    model = Hybrid([Conv(D, D, 2), Conv(D)], []).double()
    m = measured(model)
    h, g = by_hand(model, pictures())
    assert m.h_norm == pytest.approx(h, rel=1e-9)
    assert m.g_norm == pytest.approx(g, rel=1e-9)
    (values,) = said(m, "steps-outside")
    paths = ["convs.0", "convs.1", "blocks.0", "blocks.1", "blocks.2"]
    line = f"Anatomy.of(model, blocks={paths})"
    assert values == {"before": ["convs.0", "convs.1"], "after": [], "line": line}
    (text,) = [str(note) for note in m.notes if note.code == "steps-outside"]
    assert "before the first site, in convs.0, convs.1" in text
    assert line in text
    whole = measured(model, anatomy={"blocks": paths})
    assert len(whole.h_norm) == 6
    assert whole.g_norm[3:] == pytest.approx(g[1:], rel=1e-9)
    assert not said(whole, "steps-outside")


def test_residual_steps_after_the_last_block_are_named() -> None:
    torch.manual_seed(0)
    m = measured(Hybrid([], [Mlp(), Mlp()]).double(), anatomy={"blocks": "blocks"})
    (values,) = said(m, "steps-outside")
    assert (values["before"], values["after"]) == ([], ["late.0", "late.1"])


def test_steps_that_are_written_out_before_the_first_block_are_named_by_their_last_layer() -> None:
    torch.manual_seed(0)
    convs = [nn.Sequential(nn.Conv2d(D, 4, 1), nn.ReLU(), nn.Conv2d(4, D, 1)) for _ in range(2)]
    (values,) = said(measured(WrittenOutBefore(list(convs), []).double()), "steps-outside")
    assert (values["before"], values["after"]) == (["convs.0.2", "convs.1.2"], [])


class Gate(nn.Module):
    """Weighs its channels by what it made of them, as squeeze and excitation does: no sum."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(D, 2, 1), nn.Conv2d(2, D, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(D, D, 3, 1, 1), nn.Conv2d(D, D, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(F.relu(self.a(x))))


@pytest.mark.parametrize("convs", [[], [Plain(), Plain()], [Gate()], [Plain(), Gate()]])
def test_stems_without_a_skip_get_no_note(convs: list[nn.Module]) -> None:
    m = measured(Hybrid(convs, []).double())
    assert len(m.h_norm) == 4
    assert not said(m, "steps-outside")


def test_one_positional_convolution_that_is_added_gets_no_note() -> None:
    m = measured(WrittenOutBefore([nn.Conv2d(D, D, 3, padding=1)], []).double())
    assert len(m.h_norm) == 4
    assert not said(m, "steps-outside")
