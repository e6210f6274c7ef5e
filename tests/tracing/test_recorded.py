"""Recorded credits: other people's backward passes, audited unchanged, against a reference that is not theirs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from foreign import FALinear, Net, example, made, plain_twin
from walkback.network.batch import pairs
from walkback.tracing.session import Tracer


def recorded_trace(net: nn.Module, x: Tensor, y: Tensor, **options: Any) -> wb.Trace:
    credit = wb.recorded(net, **options)
    with Tracer(net, reference="derived") as tracer:
        return tracer.trace(x, y, credit)


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).double().norm() / b.double().norm())


# -- the recorded signal is the rule's -------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [False, True])
def test_layers_that_replace_gradients_give_the_credits_of_our_dfa(tokens: bool):
    net, (x, y) = made("dfa", tokens=tokens), example(1, tokens=tokens)[0]
    trace = recorded_trace(net, x, y)
    rule = wb.rules.make("dfa")
    rule.setup(None, trace.states, 5, torch.Generator())  # type: ignore[arg-type]  # DFA looks at shapes only
    for site, layer in enumerate(net.dfa):
        rule.get_buffer(f"B{site}").copy_(layer.back)
    assert trace.credits is not None
    for ours, theirs in zip(rule.credits(trace), trace.credits, strict=True):
        assert gap(theirs, ours) < 1e-6


class Chain(nn.Module):
    """Blocks without skip: here FA layers send exactly a_l = a_{l+1} B."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 12), nn.Linear(20, 5)
        self.blocks = nn.ModuleList([FALinear(12, 16), FALinear(16, 16), FALinear(16, 20)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def test_layers_with_their_own_backward_give_the_credits_of_our_fa():
    torch.manual_seed(0)
    net, (x, y) = Chain(), example(1)[0]
    trace = recorded_trace(net, x, y)
    rule = wb.rules.make("fa")
    rule.setup(None, trace.states, 5, torch.Generator())  # type: ignore[arg-type]
    for site, layer in enumerate(net.blocks):
        rule.get_buffer(f"B{site}").copy_(layer.back)
    assert trace.credits is not None
    for ours, theirs in zip(rule.credits(trace), trace.credits, strict=True):
        assert gap(theirs, ours) < 1e-6


def test_feedback_layers_in_residual_blocks_by_hand():
    """a_{l-1} = a_l + ((a_l B2) ∘ tanh') B1, in numpy, from the exact gradient at the top."""
    net, (x, y) = made("fa"), example(1)[0]
    trace = recorded_trace(net, x, y)
    assert trace.credits is not None
    a = trace.grads[-1].double().numpy()
    assert np.allclose(trace.credits[-1].numpy(), a, rtol=1e-5, atol=1e-7)
    for site in (2, 1, 0):
        first, _, second = net.blocks[site]
        h = trace.states[site].double().numpy()
        z = np.tanh(h @ first.weight.detach().double().numpy().T + first.bias.detach().double().numpy())
        a = a + ((a @ second.back.double().numpy()) * (1 - z**2)) @ first.back.double().numpy()
        assert np.allclose(trace.credits[site].numpy(), a, rtol=1e-4, atol=1e-5 * np.abs(a).max())


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("kind", ["fa", "dfa", "plain"])
def test_the_derived_reference_is_the_gradient_of_a_plain_network(kind: str, tokens: bool):
    net, (x, y) = made(kind, tokens=tokens), example(1, tokens=tokens)[0]
    with Tracer(plain_twin(net, tokens=tokens)) as tracer:
        truth = tracer.trace(x, y)
    with Tracer(net, reference="derived") as tracer:
        derived = tracer.trace(x, y)
    assert derived.reference == "derived"
    for g, t in zip(derived.grads, truth.grads, strict=True):
        assert gap(g, t) < 1e-6
    with Tracer(net) as tracer:
        own = tracer.trace(x, y)
    assert (gap(own.grads[0], truth.grads[0]) < 1e-6) == (kind == "plain")


@pytest.mark.parametrize("kind", ["fa", "dfa"])
def test_an_audit_of_foreign_layers(kind: str):
    net, batches = made(kind), example(8)
    report = wb.diagnose(net, batches, credit=wb.recorded(net))
    cosines = report.per_layer["cosine"]
    assert (report.altered, report.doubted) == (None, None)
    assert report.conditions["reference"] == "derived from the forward pass alone"
    assert report.conditions["backward_error"] < 1e-3
    twin = wb.diagnose(net, batches, credit=wb.recorded(net), reference=plain_twin(net))
    assert twin.conditions["reference"] == "a plain twin of the network"
    assert cosines == pytest.approx(twin.per_layer["cosine"], abs=1e-6)
    assert cosines[0] < 0.9
    # The mistake that this is about: with its own backward as reference a network agrees with itself.
    wrong = wb.diagnose(net, batches, credit=lambda trace: trace.grads)
    assert wrong.values["gamma"] == pytest.approx(1.0)
    assert wrong.altered is not None
    assert wrong.notes[0].code == "altered-backward"
    assert 'reference="derived"' in wrong.advisories[0]


# -- hooks, functions, writers ---------------------------------------------------------------------------------------


def test_module_hooks_that_replace_gradients():
    net, (x, y) = made("plain"), example(1)[0]
    with Tracer(net) as tracer:
        truth = tracer.trace(x, y)
    net.blocks[1].register_full_backward_hook(lambda module, given, made: (torch.zeros_like(given[0]),))
    trace = recorded_trace(net, x, y)
    assert trace.credits is not None
    for g, t in zip(trace.grads, truth.grads, strict=True):
        assert gap(g, t) < 1e-6
    for site in (2, 3):
        assert gap(trace.credits[site], truth.grads[site]) < 1e-6
    assert gap(trace.credits[1], truth.grads[2]) < 1e-6, "block 2 sends nothing back: only the skip is left"


def test_tensor_hooks_that_replace_gradients():
    class Hooked(Net):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            logits.register_hook(lambda grad: 2 * grad.flip(1))
            return logits

    net, (x, y) = Hooked("plain"), example(1)[0]
    trace = recorded_trace(net, x, y)
    with Tracer(plain_twin(net)) as tracer:
        truth = tracer.trace(x, y)
    assert trace.credits is not None
    assert gap(trace.grads[0], truth.grads[0]) < 1e-6
    assert gap(trace.credits[0], truth.grads[0]) > 0.1


def local_dfa(matrices: list[Tensor], update: bool = False):
    """Training code that never runs the network as a whole: detached blocks, a signal each, weights moved by hand."""

    def backward(model: Net, x: Tensor, y: Tensor) -> None:
        written = [model.embed(x)]
        h = written[0].detach()
        for block in model.blocks:
            written.append(block(h))
            h = h + written[-1].detach()
        error = model.out_head(model.out_ln(h)).softmax(1) - F.one_hot(y, 5)
        torch.autograd.backward(written, [error.detach() @ b / len(x) for b in matrices])
        if update:
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * (0 if p.grad is None else p.grad) + 0.01 * p

    return backward


@pytest.mark.parametrize("update", [False, True])
def test_a_training_function_that_works_layer_by_layer(update: bool):
    net, (x, y) = made("plain"), example(1)[0]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    matrices = [torch.randn(5, 16) for _ in range(4)]
    trace = recorded_trace(net, x, y, backward=local_dfa(matrices, update))
    error = trace.logits.softmax(1) - F.one_hot(y, 5)
    assert trace.credits is not None
    for a, b in zip(trace.credits, matrices, strict=True):
        assert gap(a, error @ b / len(x)) < 1e-6
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


class Ends(nn.Module):
    """A feedback layer inside the block, at its end: the signal above it is not the one the weights get."""

    def __init__(self) -> None:
        super().__init__()
        net = made("dfa")
        self.embed = nn.Sequential(net.embed, net.dfa[0])
        self.blocks = nn.ModuleList(nn.Sequential(b, d) for b, d in zip(net.blocks, net.dfa[1:]))
        self.out_ln, self.out_head = net.out_ln, nn.Sequential(net.out_head, net.output)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


class Add(nn.Module):
    """h + f, and the feedback layer after it: the block returns the new state."""

    def __init__(self, f: nn.Module, feedback: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.f, self.feedback, self.last = f, feedback, last

    def forward(self, h: Tensor) -> Tensor:
        return self.last(self.feedback(h + self.f(h)))


class EndsOfStates(Ends):
    def __init__(self, last: type[nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Add(*block, last()) for block in self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.out_head(self.out_ln(h))


class Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape)


@pytest.mark.parametrize("net", [Ends, EndsOfStates, lambda: EndsOfStates(Same)], ids=["branch", "state", "view"])
def test_a_feedback_layer_at_the_end_of_a_block_is_read_behind(net: Any):
    (x, y) = example(1)[0]
    truth = recorded_trace(made("dfa"), x, y)
    built = net()
    found = recorded_trace(built, x, y)
    assert truth.credits is not None
    assert found.credits is not None
    for site in range(4):
        assert gap(found.credits[site], truth.credits[site]) < 1e-6
    assert wb.diagnose(built, [(x, y)], credit=wb.recorded(built)).per_layer["cosine"][-1] < 0.9


def test_a_backward_hook_on_the_last_layer_of_a_block():
    net, (x, y) = made("plain"), example(1)[0]
    net.blocks[2][-1].register_full_backward_pre_hook(lambda module, grads: (-grads[0],))
    trace = recorded_trace(net, x, y)
    assert trace.credits is not None
    assert gap(trace.credits[-1], -trace.grads[-1]) < 1e-6


class _Doubled(torch.autograd.Function):
    """Changes the value, so that its output is what the block wrote."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return -grad


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Doubled.apply(x)


def test_a_function_at_the_end_of_a_block_that_computes_something_is_read_at_its_output():
    net, (x, y) = made("plain"), example(1)[0]
    net.blocks[2].append(Doubled())
    trace = recorded_trace(net, x, y)
    assert trace.credits is not None
    assert gap(trace.credits[-1], trace.grads[-1]) < 1e-6


class WhenTraining(nn.Module):
    """A feedback layer that does nothing in eval mode."""

    def __init__(self, feedback: nn.Module) -> None:
        super().__init__()
        self.feedback = feedback

    def forward(self, x: Tensor) -> Tensor:
        return self.feedback(x) if self.training else x


def test_layers_that_alter_their_gradient_in_training_only_are_not_recorded_as_bp():
    """Recording is in eval mode, as all of measuring is; where training mode sends another credit, it says so."""
    (x, y) = example(1)[0]
    truth, net = recorded_trace(made("dfa"), x, y), made("dfa")
    net.dfa = nn.ModuleList(WhenTraining(layer) for layer in net.dfa)
    net.eval()

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        model.train()
        F.cross_entropy(model(x), y, reduction="sum").backward()

    with pytest.raises(wb.CreditError, match=r"in training mode that of site \d is another one than in eval mode"):
        recorded_trace(net, x, y)
    asleep, awake = recorded_trace(net, x, y, train=False), recorded_trace(net, x, y, train=True)
    by_hand = recorded_trace(net, x, y, backward=backward)
    assert truth.credits is not None
    assert asleep.credits is not None
    assert awake.credits is not None
    assert by_hand.credits is not None
    for site in range(4):
        assert gap(asleep.credits[site], asleep.grads[site]) < 1e-6
        assert gap(awake.credits[site], truth.credits[site]) < 1e-6
        assert gap(by_hand.credits[site], truth.credits[site]) < 1e-6
    assert not any(m.training for m in net.modules())


def test_the_modules_that_write_can_be_named():
    (x, y) = example(1)[0]
    truth = recorded_trace(made("dfa"), x, y)
    with pytest.raises(wb.CreditError, match="Expected the credit of site 0 to train the module that writes it, embed"):
        recorded_trace(Ends(), x, y, writers=["embed", *(f"blocks.{i}" for i in range(3))])  # above the feedback
    named = recorded_trace(Ends(), x, y, writers=["embed.0", *(f"blocks.{i}.0" for i in range(3))])
    assert truth.credits is not None
    assert named.credits is not None
    for site in range(4):
        assert gap(named.credits[site], truth.credits[site]) < 1e-6
    with pytest.raises(wb.InputError, match="Expected 4 writers, one for each site 0…3, but got 2"):
        recorded_trace(Ends(), x, y, writers=["embed.0", "blocks.0.0"])


class Pooled(nn.Module):
    """As a LeNet of feedback layers: a ReLU between the layers, and every second number only goes on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(8, 16), nn.Linear(5, 5)
        self.blocks = nn.ModuleList(FALinear(a, b) for a, b in ((16, 16), (8, 12), (6, 10)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h).relu()[:, ::2]
        return self.head(h)


@pytest.mark.parametrize("writers", [None, ["embed", "blocks.0", "blocks.1", "blocks.2"]])
def test_what_lies_between_the_blocks_is_no_other_pass(writers: Any):
    """Back through what lies between, s goes to every second number where z > 0: that is a_l, and s = a_l B_l below."""
    net, (x, y) = Pooled(), example(1)[0]
    credit = wb.recorded(net, writers=writers)
    with Tracer(net, {"blocks": "blocks"}, reference="derived") as tracer:
        trace = tracer.trace(x, y, credit)
    assert credit.notes == []
    assert trace.credits is not None
    s = (trace.logits.softmax(1) - F.one_hot(y, 5)) @ net.head.weight.detach()
    for site in range(3, 0, -1):
        signal = torch.zeros_like(trace.states[site])
        signal[:, ::2] = s
        signal[trace.states[site] <= 0] = 0
        assert gap(trace.credits[site], signal) < 1e-5
        s = signal @ net.blocks[site - 1].back
    assert gap(trace.credits[0], s) < 1e-5


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(labels, back)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        labels, back = ctx.saved_tensors
        return labels @ back, None, None


class Projects(nn.Module):
    """Direct random target projection: the forward pass takes the labels, and can't do without them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(8, 16), nn.Linear(16, 5)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
        self.back = nn.Parameter(torch.randn(4, 5, 16), requires_grad=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = _Projected.apply(self.embed(x), labels, self.back[0])
        for block, back in zip(self.blocks, self.back[1:]):
            h = h + _Projected.apply(block(h), labels, back)
        return self.head(h)


def test_a_network_that_takes_the_labels_gets_them_and_is_recorded():
    net, batches = Projects(), example(2)
    targets = [F.one_hot(y, 5).float() for _, y in batches]
    dicts = [({"x": x, "labels": t}, y) for (x, y), t in zip(batches, targets)]
    found = wb.measure(net, dicts, credit=wb.recorded(net))
    assert not [note for note in found.notes if note.code == "unproven-credit"]
    theirs = wb.measure(
        net, dicts, credit=lambda t: [t.inputs["labels"] @ back for back in net.back], reference="derived"
    )
    assert np.allclose(found.cosine, theirs.cosine, atol=1e-5)
    with pytest.raises(wb.InputError, match="mat1 and mat2 shapes cannot be multiplied") as info:
        wb.measure(net, batches)  # class numbers, where it wants one-hot rows
    assert any("come as a dict of the network's keywords" in note for note in info.value.__notes__)
    assert [key for x, _ in pairs(dicts, nn.Linear(8, 5)) for key in x] == ["x", "x"]


# -- refusals --------------------------------------------------------------------------------------------------------


def test_a_backward_that_reaches_no_site():
    net, (x, y) = made("plain"), example(1)[0]

    def by_hand(model: Net, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            model(x)

    with pytest.raises(wb.CreditError, match="Expected the backward pass to reach site 0, but no signal came"):
        recorded_trace(net, x, y, backward=by_hand)


def test_errors_in_the_users_backward_are_not_swallowed():
    net, (x, y) = made("plain"), example(1)[0]

    def broken(model: Net, x: Tensor, y: Tensor) -> None:
        raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError, match="theirs"):
        recorded_trace(net, x, y, backward=broken)
    assert not any(b._forward_hooks or b._forward_pre_hooks for b in net.modules())


def test_a_backward_on_other_inputs():
    net, (x, y) = made("plain"), example(1)[0]
    with pytest.raises(wb.CreditError, match="Expected the recorded pass to compute the states that are measured"):
        recorded_trace(net, x, y, backward=lambda m, x, y: F.cross_entropy(m(x.flip(0)), y).backward())


def test_a_backward_that_runs_the_network_twice():
    net, (x, y) = made("plain"), example(1)[0]

    def twice(model: Net, x: Tensor, y: Tensor) -> None:
        (F.cross_entropy(model(x), y) + F.cross_entropy(model(x), y)).backward()

    with pytest.raises(wb.CreditError, match="its module ran 2 times and each run got one"):
        recorded_trace(net, x, y, backward=twice)


def test_recorded_credit_is_not_compared_with_itself():
    net, (x, y) = made("fa"), example(1)[0]
    with Tracer(net) as tracer, pytest.raises(wb.CreditError, match="a cosine of it with itself is 1"):
        tracer.trace(x, y, wb.recorded(net))


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * ctx.saved_tensors[0].cos()


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ByNumpy.apply(x)


def test_a_forward_pass_that_leaves_torch_needs_a_twin():
    net, twin, batches = made("fa"), made("plain"), example(2)
    for block in net.blocks:
        block[1] = Sine()
    with pytest.raises(wb.InputError, match=r"Expected the derived reference to predict .* Pass a plain twin"):
        wb.diagnose(net, batches, credit=wb.recorded(net))

    class Sin(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin()

    for block in twin.blocks:
        block[1] = Sin()
    with pytest.raises(wb.InputError, match=r"Expected the reference to compute the states .* they differ at site 0"):
        wb.diagnose(net, batches, credit=wb.recorded(net), reference=made("plain", seed=1))
    twin.load_state_dict({k: v for k, v in net.state_dict().items() if "back" not in k})
    assert wb.diagnose(net, batches, credit=wb.recorded(net), reference=twin).values["gamma"] < 0.9


def test_a_twin_that_is_altered_too_is_refused():
    net, batches = made("fa"), example(2)
    with pytest.raises(wb.InputError, match="Its backward pass is altered too: build it from plain layers"):
        wb.diagnose(net, batches, credit=wb.recorded(net), reference=net)


@pytest.mark.parametrize("loss", [None, torch.nn.CrossEntropyLoss()], ids=["each", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_and_a_mean_loss_are_confirmed(dtype: torch.dtype, loss: Any):
    net, batches = made("fa").to(dtype), [(x.to(dtype), y) for x, y in example(2)]
    report = wb.diagnose(net, batches, credit=wb.recorded(net), loss=loss)
    assert report.conditions["backward_error"] < 1e-3
    net = made("fa")
    full = wb.diagnose(net, example(2), credit=wb.recorded(net))
    assert report.values["gamma"] == pytest.approx(full.values["gamma"], abs=1e-2)


def test_what_can_not_be_copied_to_float64_can_not_be_confirmed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("walkback.tracing.backward.COPY_LIMIT", 0)
    net, batches = made("plain").bfloat16(), [(x.bfloat16(), y) for x, y in example(2)]
    with pytest.raises(wb.InputError, match="finite differences need float32 or float64, but this pass runs in bfloat"):
        wb.diagnose(net, batches, credit=wb.recorded(net))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("net",), "Expected model to be a torch.nn.Module"),
        ((made("plain"), 3), "Expected backward to be a function of"),
    ],
)
def test_what_recorded_takes(arguments: tuple, words: str):
    with pytest.raises(wb.InputError, match=words):
        wb.recorded(*arguments)


@pytest.mark.parametrize("reference", ["twin", 3, lambda x: x])
def test_what_a_reference_may_be(reference: Any):
    with pytest.raises(wb.InputError, match='Expected reference to be "derived", or a plain twin'):
        wb.measure(made("plain"), example(2), reference=reference)


# -- no trace --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_recording_leaves_the_network_as_it_was(fails: bool):
    net, batches = made("dfa").train(), example(2)
    F.cross_entropy(net(batches[0][0]), batches[0][1]).backward()
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}
    objects = {name: p.grad for name, p in net.named_parameters()}
    state, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    needs = {name: p.requires_grad for name, p in net.named_parameters()}

    def backward(model: Net, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        torch.randn(3)
        if fails:
            raise ZeroDivisionError

    try:
        wb.measure(net, batches, credit=wb.recorded(net, backward))
    except ZeroDivisionError:
        assert fails
    else:
        assert not fails
    assert all(m.training for m in net.modules())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    for name, p in net.named_parameters():
        assert p.grad is objects[name]
        assert p.grad is None or torch.equal(p.grad, grads[name])
        assert p.requires_grad is needs[name]
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in net.modules())


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("past_the_counter", [False, True])
def test_an_optimiser_in_the_backward_pass_does_not_train_the_network(given: bool, past_the_counter: bool):
    """`register_post_accumulate_grad_hook(step)`, as memory-saving recipes do."""
    net, plain, batches = made("fa"), made("fa"), example(3)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimisers = {p: torch.optim.SGD([p], lr=0.5) for p in trained}
    stepped = []

    def step(p: Tensor) -> None:
        stepped.append(p)
        if past_the_counter:
            p.data.sub_(0.5)
        else:
            optimisers[p].step()  # type: ignore[index]

    for p in trained:
        p.register_post_accumulate_grad_hook(step)
    backward = (lambda model, x, y: F.cross_entropy(model(x), y, reduction="sum").backward()) if given else None
    before = [p.detach().clone() for p in net.parameters()]
    found = wb.diagnose(net, batches, credit=wb.recorded(net, backward))
    assert len(stepped) == (3 + 4) * len(trained), "the first batch is run four times more, to prove the credits"
    assert all(torch.equal(p, kept) for p, kept in zip(net.parameters(), before, strict=True))
    assert found.per_layer == wb.diagnose(plain, batches, credit=wb.recorded(plain)).per_layer


def test_frozen_parts_are_recorded_too():
    (x, y) = example(1)[0]
    truth, frozen = made("dfa"), made("dfa").requires_grad_(False)
    trace, again = recorded_trace(truth, x, y), recorded_trace(frozen, x, y)
    assert trace.credits is not None
    assert again.credits is not None
    for a, b in zip(trace.credits, again.credits, strict=True):
        assert gap(b, a) < 1e-6
    for a, b in zip(trace.grads, again.grads, strict=True):
        assert gap(b, a) < 1e-6


def test_the_memory_of_a_derived_pass_is_let_go():
    net, (x, y) = made("fa"), example(1)[0]
    with Tracer(net, reference="derived") as tracer:
        refs = [weakref.ref(t) for t in tracer.trace(x, y).states]
        gc.collect()
        assert not any(r() is not None for r in refs)


# -- where neighbours go wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-6, 1e-12])
def test_the_cosine_of_a_tiny_loss_is_that_of_the_loss(scale: float):
    """A cosine with a floor under its norms reports 1.000 for a loss times 1e-6, whatever the truth."""
    net, batches = made("dfa"), example(2)
    plain = wb.measure(net, batches, credit=wb.recorded(net))
    tiny = wb.measure(
        net,
        batches,
        credit=wb.recorded(net),
        loss=lambda logits, y: scale * F.cross_entropy(logits, y, reduction="none"),
    )
    assert max(abs(c) for c in plain.cosine) < 0.6
    assert tiny.cosine == pytest.approx(plain.cosine, abs=1e-5)


def test_token_networks_are_audited():
    """Layers that take matrices only can't be; ours takes (B, T, d) and integer inputs."""
    net, batches = made("fa", tokens=True), example(2, tokens=True)
    report = wb.diagnose(net, batches, credit=wb.recorded(net))
    assert all(-1 <= c <= 1 for c in report.per_layer["cosine"])
    assert report.per_layer["cosine"][0] < 0.9


def test_batches_as_dicts_and_streams_with_time_first():
    """Keywords and (T, B, d): the signals come back with the batch first, as the states do."""

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.blocks = nn.ModuleList(nn.Sequential(FALinear(8, 8), nn.Tanh()) for _ in range(2))
            self.head = nn.Linear(8, 5)

        def forward(self, ids: Tensor, shift: float) -> Tensor:
            h = self.embed(ids).transpose(0, 1) + shift
            for block in self.blocks:
                h = h + block(h)
            return self.head(h[0])

    torch.manual_seed(0)
    net = TimeFirst()
    batches = [({"ids": x, "shift": 0.5}, y) for x, y in example(2, tokens=True)]
    with Tracer(net, reference="derived") as tracer:
        trace = tracer.trace(*batches[0], wb.recorded(net))
    assert trace.credits is not None
    (a,) = (trace.credits[2],)
    assert gap(a, trace.grads[2]) < 1e-6
    first, _ = net.blocks[1]
    z = torch.tanh(first(trace.states[1])).detach()
    assert gap(trace.credits[1], a + (a * (1 - z**2)) @ first.back) < 1e-5
    report = wb.diagnose(net, batches, credit=wb.recorded(net))
    assert report.conditions["backward_error"] < 1e-3
    assert report.per_layer["cosine"][0] < 0.99


def test_a_batch_in_parts_is_recorded_part_by_part():
    net, batches = made("fa"), example(2)
    whole = wb.measure(net, batches, credit=wb.recorded(net))
    parts = wb.measure(net, batches, credit=wb.recorded(net), chunk=48)
    assert parts.cosine == pytest.approx(whole.cosine, abs=1e-6)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_stream_that_starts_as_a_parameter_is_recorded_where_it_can_be_and_never_written(frozen: bool) -> None:
    torch.manual_seed(0)

    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Parameter(torch.randn(12, 8)), nn.Linear(8, 4)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.table
            for block in self.blocks:
                h = h + block(h)
            return self.head(h)

    net, batch = Learned().requires_grad_(not frozen), (torch.arange(12), torch.randint(4, (12,)))
    before = net.table.detach().clone()
    if frozen:
        with pytest.raises(wb.CreditError, match="it starts as a parameter or buffer of shape"):
            wb.diagnose(net, [batch], credit=wb.recorded(net))
    else:
        assert wb.diagnose(net, [batch], credit=wb.recorded(net)).per_layer["cosine"] == pytest.approx([1.0] * 3)
    assert torch.equal(net.table, before)
    assert net.table.is_leaf


class Chained(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.body, self.out = nn.ModuleList(layers), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = layer(x)
        return self.out(x)


def halves(logits: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (logits - F.one_hot(y, logits.shape[1])).square().sum(1)


@pytest.mark.parametrize("loss", [None, halves])
def test_a_session_of_ones_own_records_with_its_sites_and_its_loss(loss: Any) -> None:
    """Sites that only a forward pass shows, and the credit of the loss that is measured, not of another one."""
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (FALinear(16, 16), nn.Tanh())]
    net = Chained(layers)
    x, y = torch.randn(8, 16), torch.arange(8) % 4
    with Tracer(net, loss=loss, reference="derived") as tracer:
        credits = tracer.trace(x, y, wb.recorded(net)).credits
    assert credits is not None
    for sample in range(8):  # a linear layer's bias gets the signal at its output, of one sample that sample's
        net.zero_grad()
        (loss or F.cross_entropy)(net(x[sample : sample + 1]), y[sample : sample + 1]).sum().backward()
        for layer, credit in zip(layers[::2], credits, strict=True):
            assert gap(credit[sample], layer.bias.grad) < 1e-5  # type: ignore[arg-type]
