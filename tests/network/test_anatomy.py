"""Finding stem, blocks and readout: what is recognised, what is asked for, and what the errors tell the user to do."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from walkback.notes import Note
from walkback.selftest import ResidualNet, network

BATCHES = wb.selftest.batches(2, 16)


class Branch(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(self.inner(h))


class State(Branch):
    def forward(self, h: Tensor) -> Tensor:
        return h + super().forward(h)


def build(
    stem: str = "embed",
    blocks: str = "blocks",
    norm: str | None = "out_ln",
    head: str = "out_head",
    block: type[Branch] = Branch,
    depth: int = 3,
    the_norm: nn.Module | None = None,
) -> nn.Module:
    """A residual network whose parts carry the given names."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, stem, nn.Linear(16, 8))
            setattr(self, blocks, nn.ModuleList(block(8) for _ in range(depth)))
            if norm is not None:
                setattr(self, norm, the_norm or nn.LayerNorm(8))
            setattr(self, head, nn.Linear(8, 10))

        def forward(self, x: Tensor) -> Tensor:
            h = getattr(self, stem)(x)
            for b in getattr(self, blocks):
                h = b(h) if block is State else h + b(h)
            return getattr(self, head)(h if norm is None else getattr(self, norm)(h))

    torch.manual_seed(0)
    return Net()


def states(net: nn.Module, **anatomy: object) -> list[float | None]:
    return wb.measure(net, BATCHES, anatomy=anatomy or None).h_norm


def slow_states(net: nn.Module, stem: str = "embed", blocks: str = "blocks") -> list[float]:
    """‖h_l‖ by running the network by hand."""
    x = torch.cat([x for x, _ in BATCHES])
    with torch.no_grad():
        h = [getattr(net, stem)(x)]
        for b in getattr(net, blocks):
            h.append(b(h[-1]) if isinstance(b, State) else h[-1] + b(h[-1]))
    return [float(v.double().norm(dim=1).mean()) for v in h]


# -- recognised without being told ---------------------------------------------------------------------------


@pytest.mark.parametrize("stem", ["embed", "patch_embed"])
@pytest.mark.parametrize(
    ("norm", "head"), [("out_ln", "out_head"), ("norm", "head"), (None, "out_head"), (None, "head")]
)
@pytest.mark.parametrize("block", [Branch, State])
def test_both_spellings_are_read_with_and_without_a_terminal_norm(stem, norm, head, block):
    net = build(stem, norm=norm, head=head, block=block)
    found = wb.Anatomy.of(net)
    assert found.stem is getattr(net, stem)
    assert found.blocks == tuple(net.blocks)
    assert found.readout == tuple(getattr(net, n) for n in (norm, head) if n)
    assert states(net) == pytest.approx(slow_states(net, stem), rel=1e-6)


def test_an_identity_norm_is_a_norm_that_does_nothing():
    with_norm, without = build(the_norm=nn.Identity()), build(norm=None)
    without.load_state_dict(with_norm.state_dict())
    assert [type(p).__name__ for p in wb.Anatomy.of(with_norm).readout] == ["Identity", "Linear"]
    assert wb.measure(with_norm, BATCHES).g_norm == wb.measure(without, BATCHES).g_norm


@pytest.mark.parametrize("container", [nn.Sequential, nn.ModuleList, lambda bs: nn.ModuleDict(dict(zip("abc", bs)))])
def test_blocks_may_be_any_container(container):
    net = build(block=State)
    parts = list(net.blocks)
    expected = slow_states(net)
    net.blocks = container(parts) if container is not nn.Sequential else nn.Sequential(*parts)
    net.forward = lambda x: net.out_head(net.out_ln(run(parts, net.embed(x))))

    def run(blocks, h):
        for b in blocks:
            h = b(h)
        return h

    assert wb.Anatomy.of(net).blocks == tuple(parts)
    assert states(net) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("make", [build, lambda: Encoder()], ids=["published", "other names"])
def test_wrappers_are_looked_through(make):
    net = make()
    expected, numbers = str(wb.Anatomy.of(net)), wb.measure(net, BATCHES).g_norm
    for wrapped in (
        torch.compile(net, backend="eager"),
        nn.DataParallel(net),
        nn.DataParallel(torch.compile(net, backend="eager")),
    ):
        assert str(wb.Anatomy.of(wrapped)) == expected
        assert wb.measure(wrapped, BATCHES).g_norm == numbers


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch 2.6 has it first")
def test_blocks_that_are_compiled_one_by_one():
    net = Encoder()
    expected, numbers = str(wb.Anatomy.of(net)), wb.measure(net, BATCHES).g_norm
    net.layers = nn.ModuleList(torch.compile(layer, backend="eager") for layer in net.layers)
    assert str(wb.Anatomy.of(net)) == expected
    assert wb.measure(net, BATCHES).g_norm == numbers


def test_blocks_compiled_one_by_one_are_refused_by_a_torch_that_can_not_run_them_eagerly(monkeypatch):
    monkeypatch.delattr(torch.compiler, "set_stance", raising=False)
    net = Encoder()
    net.layers = nn.ModuleList(torch.compile(layer, backend="eager") for layer in net.layers)
    with pytest.raises(wb.InputError, match=r"Expected torch 2\.6 or newer .* as it was before torch\.compile"):
        wb.measure(net, BATCHES)


def test_a_wrapper_of_unknown_name_only_adds_to_the_paths():
    class Adapter(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.base_model = inner

        def forward(self, *args: object, **kwargs: object) -> object:
            return self.base_model(*args, **kwargs)

    net = Encoder()
    assert wb.Anatomy.of(Adapter(net)).names == tuple(f"base_model.{n}" for n in wb.Anatomy.of(net).names)
    assert wb.measure(Adapter(net), BATCHES).g_norm == wb.measure(net, BATCHES).g_norm


def test_printing_names_every_part_in_order():
    lines = str(wb.Anatomy.of(build())).splitlines()
    assert [line.split() for line in lines] == [
        ["stem", "embed", "Linear", "writes", "h_0"],
        *(["block", str(i), f"blocks.{i - 1}", "Branch", "writes", f"h_{i}"] for i in (1, 2, 3)),
        ["readout", "out_ln", "LayerNorm", "reads", "h_3"],
        ["readout", "out_head", "Linear"],
        ["blocks", "hold", "47%", "of", "the", "weights;", "the", "rest:", "embed,", "out_ln,", "out_head"],
    ]
    assert len({line.index(kind) for line, kind in zip(lines, ["Linear", "Branch", "Branch"])}) == 1
    assert str(wb.Anatomy("embed", "path.to.blocks")).split() == ["stem", "embed", "blocks", "path.to.blocks"]


# -- named by the caller -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        lambda net: {"stem": "enter", "blocks": "tower", "readout": "leave"},
        lambda net: {"stem": net.enter, "blocks": net.tower, "readout": net.leave},
        lambda net: {"blocks": "tower"},
        lambda net: {"blocks": ["tower.0", "tower.1", "tower.2"]},
        lambda net: {"blocks": list(net.tower), "readout": ["last", "leave"]},
        lambda net: {"blocks": (b for b in net.tower)},
        lambda net: {"blocks": [net.tower]},
    ],
    ids=["paths", "modules", "only blocks", "list of paths", "list of modules", "generator", "container in a list"],
)
def test_parts_may_be_modules_paths_or_lists_of_them(parts):
    net = build("enter", "tower", "last", "leave")
    expected = pytest.approx(slow_states(net, "enter", "tower"), rel=1e-6)
    assert wb.measure(net, BATCHES, anatomy=wb.Anatomy.of(net, **parts(net))).h_norm == expected
    assert wb.measure(net, BATCHES, anatomy=parts(net)).h_norm == expected


def test_an_anatomy_made_of_paths_waits_for_its_model():
    net = build("enter", "tower", "last", "leave")
    waiting = wb.Anatomy("enter", "tower", ("last", "leave"))
    assert wb.measure(net, BATCHES, anatomy=waiting).h_norm == pytest.approx(slow_states(net, "enter", "tower"), 1e-6)


def test_a_named_stem_or_readout_is_used_although_the_blocks_are_found():
    net = build(head="leave")
    found = wb.Anatomy.of(net, readout="leave")
    assert found.readout == (net.leave,)
    assert found.stem is net.embed
    assert found.blocks == tuple(net.blocks)
    assert wb.Anatomy.of(net, stem=["embed", "out_ln"]).stem == (net.embed, net.out_ln)


def test_one_sequential_block_stays_one_block_however_it_is_named():
    net = network(depth=1)
    assert len(net.blocks[0]) == 4
    for anatomy in (
        None,
        wb.Anatomy.of(net),
        wb.Anatomy.of(net, blocks=net.blocks, readout="out_ln"),
        {"branch": True},
    ):
        assert len(wb.measure(net, BATCHES, anatomy=anatomy).h_norm) == 2
    assert wb.Anatomy.of(net, blocks=[net.blocks[0]]).blocks == (net.blocks[0],)


# -- branch or state: seen, never assumed --------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(("block", "said"), [(Branch, "branch"), (State, "state")])
def test_what_blocks_return_is_seen(block, said, depth):
    net = build(block=block, depth=depth)
    m = wb.measure(net, BATCHES)
    assert m.conditions["blocks_return"] == said
    assert m.h_norm == pytest.approx(slow_states(net), rel=1e-6)


@pytest.mark.parametrize("block", [Branch, State])
def test_a_lone_block_with_nothing_after_it_to_look_at_asks_for_branch(block):
    net = build(block=block, depth=1, norm=None)
    with pytest.raises(
        wb.AnatomyError, match=r"only block returns.*Say which: .*branch=True\) or branch=False"
    ) as info:
        wb.measure(net, BATCHES, anatomy={"blocks": "blocks"})
    assert "(while measuring batch 0)" in info.value.__notes__
    told = wb.measure(net, BATCHES, anatomy={"blocks": "blocks", "branch": block is Branch})
    assert told.h_norm == pytest.approx(slow_states(net), rel=1e-6)


def test_return_hidden_shows_what_a_lone_block_returns():
    net = network(depth=1)
    assert wb.measure(net, BATCHES, anatomy={"blocks": "blocks"}).conditions["blocks_return"] == "branch"


def test_blocks_that_disagree_are_read_between_them_and_that_is_said():
    net, states = build(depth=3), []
    net.blocks[1] = State(8)
    net.forward = lambda x: net.out_head(mixed(net, net.embed(x)))

    def mixed(net, h):
        states[:] = [h]
        for b in net.blocks:
            h = b(h) if isinstance(b, State) else h + b(h)
            states.append(h)
        return h

    x, y = BATCHES[0]
    grads = torch.autograd.grad(F.cross_entropy(net(x), y, reduction="sum"), states)
    by_hand = [[t.detach().norm(dim=1).mean().item() for t in many] for many in (states, grads)]
    m = wb.measure(net, BATCHES[:1])
    assert m.h_norm == pytest.approx(by_hand[0], rel=1e-5)
    assert m.g_norm == pytest.approx([g / 128 for g in by_hand[1]], rel=1e-5)
    assert "stepped-sites" in {note.code for note in m.notes}
    with pytest.raises(wb.AnatomyError, match="some return the residual branch and some the new state"):
        wb.measure(net, BATCHES, anatomy={"blocks": "blocks", "branch": True})


def test_an_activation_after_every_sum_is_read_where_no_module_is_handed_the_last():
    net = build().double()
    states: list[Tensor] = []

    def forward(x):
        h = net.embed(x)
        states[:] = [h]
        for b in net.blocks:
            h = torch.relu(h + b(h))
            states.append(h)
        return net.out_head(h.unflatten(1, (2, 4)).flatten(1))  # out_ln is never called

    net.forward = forward
    x, y = BATCHES[0][0].double(), BATCHES[0][1]
    grads = torch.autograd.grad(F.cross_entropy(net(x), y, reduction="sum"), states)
    by_hand = [h.detach().norm(dim=1).mean().item() for h in states]
    m = wb.measure(net, [(x, y)] * 2)
    assert m.h_norm == pytest.approx(by_hand, rel=1e-9)
    assert m.g_norm == pytest.approx([g.norm(dim=1).mean().item() / 128 for g in grads], rel=1e-9)
    assert "received-sites" in {note.code for note in m.notes}


# -- a network that can't be read ----------------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 8)
        self.layers = nn.ModuleList(State(8) for _ in range(depth))
        self.leave = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            h = layer(h)
        return self.leave(h)


class Wrapped(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.net = Encoder(depth)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Two(nn.Module):
    """Two stacks of one length, as in an encoder with a decoder."""

    def __init__(self, depth: int = 3, other: int = 3) -> None:
        super().__init__()
        self.left, self.right = Encoder(depth), Encoder(other)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


FOUND = {
    "other names": (Encoder, "layers.{}", 3, ""),
    "one level down": (Wrapped, "net.layers.{}", 3, ""),
    "a single block": (lambda: Encoder(1), "layers.{}", 1, ""),
    "only the stem is odd": (lambda: build("enter"), "blocks.{}", 3, ""),
    "only the head is odd": (lambda: build(head="leave"), "blocks.{}", 3, ""),
    "no known name": (lambda: build("a", "tower", "b", "c"), "tower.{}", 3, "the longest run of one type, tower (3 x"),
    "a longer stack beside": (
        lambda: Two(2, 4),
        "right.layers.{}",
        4,
        "the longest stack, right.layers (4 x State); there are also left.layers (2 x State)",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_other_networks_are_read_too_and_what_was_guessed_is_said(name):
    make, path, depth, guessed = FOUND[name]
    model = make()
    found = wb.Anatomy.of(model)
    assert found.blocks == tuple(model.get_submodule(path.format(i)) for i in range(depth))
    assert found.stem is not None
    assert found.readout
    said = [line for line in str(found).splitlines() if line.startswith("guessed: the blocks")]
    assert bool(said) is bool(guessed)
    report = wb.diagnose(model, BATCHES)
    assert len(report.per_layer["h_norm"]) == depth + 1
    if guessed:
        assert f"guessed: the blocks are {guessed}" in said[0]
        assert Note("guessed", None, {"what": said[0].removeprefix("guessed: ")}) in report.notes
        line = said[0].partition("To name them: Anatomy.of(model, ")[2].removesuffix(")")
        assert wb.Anatomy.of(model, **eval(f"dict({line})")).blocks == found.blocks


def test_a_long_stack_is_folded_and_still_exact():
    lines = str(wb.Anatomy.of(Encoder(60))).splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["stem", "enter", "Linear", "writes", "h_0"],
        ["block", "1", "layers.0", "State", "writes", "h_1"],
        ["…", "58", "more:", "layers.1", "…", "58", "State", "writes", "h_2", "…", "h_59"],
        ["block", "60", "layers.59", "State", "writes", "h_60"],
        ["readout", "leave", "Linear", "reads", "h_60"],
    ]
    assert len(list(wb.Anatomy.of(Encoder(60)).rows())) == 62
    assert len(str(wb.Anatomy.of(Encoder(8))).splitlines()) == 12, "short ones are printed whole"


def test_folding_stops_where_the_type_or_the_stage_changes():
    net = nn.Sequential(
        nn.Linear(16, 8), nn.Sequential(*(State(8) for _ in range(9))), nn.Sequential(*(State(8) for _ in range(9)))
    )
    said = [line.split() for line in str(wb.Anatomy.of(net)).splitlines()]
    assert [row[:2] for row in said[1:7]] == [
        ["block", "1"], ["…", "7"], ["block", "9"], ["block", "10"], ["…", "7"], ["block", "18"]
    ]  # fmt: skip


def test_the_error_shows_the_tree_the_candidates_and_how_they_meet():
    model = Two()
    with pytest.raises(wb.AnatomyError) as info:
        wb.diagnose(model, BATCHES)
    text = str(info.value)
    assert text.startswith(
        "Expected a network with one stack of blocks, but Two has 2 stacks of 3, and nothing tells which of them "
        "carries the stream."
    )
    for path, module in model.named_modules():
        if path:
            assert re.search(rf"^ +{path.rpartition('.')[2]}: {type(module).__name__}", text, re.MULTILINE), path
    assert text.count("<- 3 x State: blocks?") == 2
    assert "Candidates for the blocks: left.layers (3 x State), right.layers (3 x State)." in text
    assert "['left.layers.0', 'left.layers.1', 'left.layers.2'] and [" in text
    assert "stand side by side" in text
    assert "anatomy = " not in text, "a line for one tower would read as if it were the network"
    assert len(wb.diagnose(model, BATCHES, anatomy={"blocks": "left.layers"}).per_layer["h_norm"]) == 4


def test_a_guess_that_the_run_disproves_is_told_with_the_error():
    class Sides(nn.Module):
        """Two towers of one type side by side look like a stack of two."""

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = Branch(16), Branch(16)
            self.leave = nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.leave(self.left(x) + self.right(2 * x))

    with pytest.raises(wb.AnatomyError, match="what the next block receives is neither") as info:
        wb.diagnose(Sides(), BATCHES)
    assert any(n.startswith("(guessed: the blocks are left to right;") for n in info.value.__notes__)
    assert "To name them" not in str(info.value.__notes__), "a line that was tried in vain is not offered"


def test_experts_inside_the_blocks_are_not_the_stream():
    class Experts(State):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.experts = nn.ModuleList(Branch(width) for _ in range(8))

    for blocks in ("layers", "tower"):
        net = build(blocks=blocks, block=State)
        container = nn.ModuleList(Experts(8) for _ in range(2))
        setattr(net, blocks, container)
        assert wb.Anatomy.of(net).blocks == tuple(container)


def test_lists_of_layers_inside_the_blocks_are_not_the_stream():
    class Deep(State):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.layers = nn.ModuleList(Branch(width) for _ in range(2))

    net = build(blocks="tower")
    net.tower = nn.ModuleList(Deep(8) for _ in range(5))
    assert wb.Anatomy.of(net).blocks == tuple(net.tower)


def test_a_network_without_any_stack_says_that_there_is_none():
    with pytest.raises(
        wb.AnatomyError,
        match=r"(?s)has no stack of blocks.*Candidates for the blocks: none\..*blocks=…",
    ):
        wb.Anatomy.of(nn.Linear(3, 3))


def test_a_long_tree_is_cut_short():
    with pytest.raises(wb.AnatomyError) as info:
        wb.Anatomy.of(Two(60, 60))
    assert re.search(r"… \d+ more modules", str(info.value))
    assert len(str(info.value).splitlines()) < 60


def test_paths_may_have_wildcards():
    net = Two()
    assert wb.Anatomy.of(net, blocks="left.lay*.*").blocks == tuple(net.left.layers)
    assert wb.Anatomy.of(net, blocks="left.layers.[01]").blocks == tuple(net.left.layers[:2])
    with pytest.raises(wb.AnatomyError, match=r"Expected 'left\.l\?\.\*' to be the dotted path"):
        wb.Anatomy.of(net, blocks="left.l?.*")


# -- wrong parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"blocks": "bloks"}, r"(?s)Expected 'bloks' to be the dotted path of a module.*It has:.*blocks: ModuleList"),
        ({"blocks": "blocks", "stem": "nope"}, "Expected 'nope' to be the dotted path"),
        ({"blocks": "blocks", "readout": "nope"}, "Expected 'nope' to be the dotted path"),
        ({"blocks": []}, "Expected at least one block, but the blocks given are empty"),
        ({"blocks": 3}, "Expected blocks to be modules or dotted paths, but got int"),
        ({"blocks": [3]}, "Expected each part to be a module or a dotted path, but got 3"),
        ({"blocks": "blocks", "stem": 3}, "Expected each part to be a module or a dotted path, but got 3"),
        ({"blocks": "blocks", "readout": 3}, "Expected readout to be modules or dotted paths, but got int"),
        ({"blocks": "blocks", "pool": "max"}, "Expected pool to be a token index, \"mean\" or None, but got 'max'"),
        ({"blocks": [nn.Linear(8, 8)]}, "Linear is not one of its modules"),
    ],
)
def test_wrong_parts_are_refused_with_what_arrived(parts, words):
    with pytest.raises(wb.AnatomyError, match=words):
        wb.Anatomy.of(build(), **parts)


def test_an_empty_stack_of_blocks_is_refused():
    with pytest.raises(wb.AnatomyError, match="at least one block"):
        wb.Anatomy.of(ResidualNet(16, 8, 0, 10))


def test_blocks_in_a_plain_list_are_pointed_out():
    net = build()
    del net._modules["blocks"]
    net.blocks = [Branch(8)]
    with pytest.raises(wb.AnatomyError, match=r"not one of its modules.*use nn\.ModuleList"):
        wb.Anatomy.of(net)


def test_the_anatomy_of_another_model_is_refused():
    with pytest.raises(wb.AnatomyError, match="Expected every part of the anatomy to belong to the model"):
        wb.diagnose(build(), BATCHES, anatomy=wb.Anatomy.of(build()))


def test_pool_outside_the_tokens_is_refused():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 10)
            self.blocks = nn.ModuleList(Branch(8) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for b in self.blocks:
                h = h + b(h)
            return self.head(h[:, 0])

    tokens = [(torch.randint(9, (8, 5)), torch.randint(10, (8,)))]
    with pytest.raises(wb.AnatomyError, match="Expected pool to be one of 5 tokens, but got 7"):
        wb.diagnose(Tokens(), tokens, anatomy={"pool": 7})


# -- stacks of several types, and of one block -----------------------------------------------------------------------


class Other(State):
    """A residual block of another type."""


class Dense(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.map = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


def chain(*blocks: type[nn.Module]) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 8), *(block(8) for block in blocks), nn.Linear(8, 10))


@pytest.mark.parametrize("kinds", [(State, Other, State, Other), (Other, State, State, State, Other)])
def test_blocks_of_two_types_in_turn_are_one_stack(kinds):
    net = chain(*kinds)
    anatomy = wb.Anatomy.of(net)
    assert anatomy.blocks == tuple(net[1:-1])
    assert (anatomy.stem, anatomy.readout) == (net[0], (net[-1],))
    assert "the longest run of modules, 1 to" in anatomy.guesses[0]
    line = anatomy.guesses[0].rpartition("To name them: ")[2]
    assert eval(line, {"Anatomy": wb.Anatomy, "model": net}).blocks == anatomy.blocks
    assert len(states(net)) == len(kinds) + 1
    tower = nn.Module()
    tower.enter, tower.tower = nn.Linear(16, 8), nn.ModuleList(kind(8) for kind in kinds)
    assert wb.Anatomy.of(tower).blocks == tuple(tower.tower)


def test_a_stem_and_a_head_of_one_type_are_no_blocks_but_are_mentioned():
    net = nn.Sequential(Dense(16, 8), State(8), State(8), State(8), Dense(8, 10))
    anatomy = wb.Anatomy.of(net)
    assert anatomy.blocks == tuple(net[1:-1])
    assert "; 0 (Dense), 4 (Dense) beside them went to stem and readout" in anatomy.guesses[0]
    assert "beside" not in wb.Anatomy.of(chain(State, State)).guesses[0]


def test_many_blocks_in_a_sequential_are_named_in_one_line_that_works():
    net = chain(*[State] * 96)
    guessed = wb.Anatomy.of(net).guesses[0]
    assert guessed.endswith('To name them: Anatomy.of(model, blocks=[f"{i}" for i in range(1, 97)])')
    inner = nn.ModuleDict({"body": net})
    line = wb.Anatomy.of(inner).guesses[0].rpartition("To name them: ")[2]
    assert eval(line, {"Anatomy": wb.Anatomy, "model": inner}).blocks == tuple(net[1:-1])


class Again(nn.Module):
    """One layer, called several times, as ALBERT does."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.groups, self.leave = nn.Linear(16, 8), nn.ModuleList([State(8)]), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for _ in range(3):
            h = self.groups[0](h)
        return self.leave(h)


def test_a_lone_block_is_offered_and_shared_layers_are_read_call_by_call():
    net = chain(State)
    with pytest.raises(wb.AnatomyError, match=r"Candidates for the blocks: 1 \(State\)\."):
        wb.Anatomy.of(net)
    assert len(wb.diagnose(net, BATCHES, anatomy={"blocks": ["1"], "branch": False}).per_layer["h_norm"]) == 2
    with pytest.raises(wb.AnatomyError, match=r"(?s)groups\.0 \(State\).*of shared layers every call is a site"):
        wb.Anatomy.of(Again())
    for anatomy in (None, {"blocks": ["groups.0"], "branch": False}, {"blocks": ["groups.0"] * 3}):
        parts = wb.diagnose(Again(), BATCHES, anatomy=anatomy).conditions["anatomy"]
        assert [row for row in parts if row.startswith("block")] == [f"block {i} groups.0#{i} State" for i in (1, 2, 3)]


class Several(State):
    """The state is not the first thing it returns."""

    def forward(self, h):  # type: ignore[override]
        h = h[1] if isinstance(h, tuple) else h["h"] if isinstance(h, dict) else h
        return (h.square(), super().forward(h))


class Named(Several):
    def forward(self, h):
        aux, h = super().forward(h)
        return {"attn": aux, "h": h}


class Carrier(nn.Module):
    def __init__(self, block: type[Several]) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Linear(16, 8), nn.ModuleList(block(8) for _ in "abc"), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            out = block(h)
            h = out["h"] if isinstance(out, dict) else out[1]
        return self.head(h)


@pytest.mark.parametrize(("block", "shown"), [(Several, r"\(16, 8\), \(16, 8\)"), (Named, r"'attn' \(16, 8\), 'h' \(")])
def test_a_block_that_does_not_return_its_state_first(block, shown):
    with pytest.raises(wb.AnatomyError, match=rf"returns several tensors, {shown}.*the first was taken for the state"):
        wb.diagnose(Carrier(block), BATCHES)


def test_what_is_no_network_is_refused():
    with pytest.raises(wb.AnatomyError, match=r"Expected model to be a torch.nn.Module, but got int"):
        wb.Anatomy.of(3)  # type: ignore[arg-type]
    with pytest.raises(wb.CreditError, match="but got the class Dense: give an instance"):
        wb.diagnose(build(), BATCHES, credit=Dense)  # type: ignore[arg-type]
