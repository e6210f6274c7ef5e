"""What a backward pass sends to the modules of a network: heard where it flows on into them, past every hook.

A signal is read at the first tensor that held the value which a module returned. A layer at the end of the module that
hands its input on unchanged is there only for its backward pass, whether by an autograd Function that replaces
gradients or by `detach()` and a `backward()` of its own: what the module's weights get is the signal behind it. There
it is read when the graph node runs, after all hooks of the tensor, in whatever order they were registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from walkback.errors import CreditError
from walkback.network.anatomy import Anatomy, Part
from walkback.network.layers import Site
from walkback.network.values import (
    first_tensor,
    fragile,
    largest,
    members,
    named_parameters_of,
    stream_of,
)
from walkback.tracing.calls import overheard
from walkback.tracing.derived import Tape, carry_gradient
from walkback.tracing.makers import Key, Makers, same
from walkback.tracing.proof import in_one_line
from walkback.tracing.reach import Reach
from walkback.tracing.writers import Writers

OTHER = (
    "other ones: another batch, training mode (dropout, batch norm), autocast or a random forward pass. Run the "
    "network on the inputs given, in the mode it is in; train=True turns dropout and batch statistics off. A function "
    "that runs under autocast is recorded where the measurement runs under it too."
)


class OtherPass(CreditError):
    """A run computed other states than those that are measured."""


class Listener:
    """Hears in one run what every writer made, the signal that came back to it, and the gradients in its weights.

    It has many attributes, since all that one run leaves is in this one place.

    Args:
        model: the network that is run.
        anatomy: its parts, resolved.
        writers: modules or paths that the user named for site 0…L; their output is read as it is.
        send: signals of an earlier run. Each is sent into its module once more on the side, for the gradients of the
            module's weights that follow from it (`sent`).
        silence: keys whose signal is replaced by zeros, to see which weights get a gradient all the same.
        tape: what the forward pass runs on, where no backward pass follows: see `derive`.
    """

    def __init__(
        self,
        model: nn.Module,
        anatomy: Anatomy,
        writers: Sequence[Part] | None,
        send: Mapping[Key, Sequence[Tensor]] | None = None,
        silence: Iterable[Key] = (),
        tape: Tape | None = None,
    ) -> None:
        self.writers = Writers(model, anatomy, writers)
        self.tape = tape
        self._outputs: dict[Key, list[Tensor]] = {}  # copies of what writers made on the tape
        self.heard: dict[Key, list[list[Tensor]]] = {}  # per run of the module the signals that came
        self.made: dict[Key, Tensor] = {}  # what a stem, or a writer that was named, made last
        self.given: dict[int, list[Tensor]] = {}  # block -> the stream it received, per run
        self._wrote: tuple[int, Tensor] | None = None  # the last block that ran, and what it returned
        self.cut: set[Key] = set()  # what returned a copy cut off its graph
        self.sent: dict[Key, dict[str, Tensor]] = {}
        self.failed: dict[Key, str] = {}  # where the signal could not be sent, and why
        self.left: dict[Key, dict[str, Tensor | None]] = {}  # gradients in the weights after the run
        self.drew = False  # random numbers
        self.shared: dict[Key, set[str]] = {}  # parameters that are used outside their module too
        self.sharded: set[Key] = set()
        self.axis = 0  # of the batch: 1 in stacks of (T, B, d), whose trace has the batch first
        self.makers = Makers(self.writers.owned())
        self._send, self._silence = send, set(silence)
        self._sending: tuple[list[Tensor], Tensor] | None = None  # whose signal is on its way on the side, and what
        self._stack = ExitStack()

    def listen(self, stack: ExitStack) -> None:
        """Put hooks on, for as long as `stack` lasts."""
        self._stack = stack

        def before(module: nn.Module, hook: Callable[..., None]) -> None:
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True).remove)

        def after(module: nn.Module, hook: Callable[..., None]) -> None:
            stack.callback(module.register_forward_hook(hook).remove)

        if self.writers.layers and not self.writers.named:
            self._listen_to_layers(self.writers.layers)
        for key, writer in self.writers.by_key.items():
            if not self.writers.layers or self.writers.named:
                before(writer, lambda _, *given, key=key: self.makers.enter(key, tree_leaves(given)))
                after(writer, lambda *run, key=key: self._after(key, run[-1]))
            for inside in set(writer.modules()) - {writer}:
                # A network may call the layers of its stem without calling the stem.
                before(inside, lambda *_, key=key: self.makers.begin(key))
                after(inside, lambda *run, key=key: self._inside(key, run[-1]))
            for part in self.writers.trained(key):
                if part is not writer:  # its weights are at home there
                    before(part, lambda *_, key=key: self.makers.begin(key))
                    after(part, lambda *_, key=key: self.makers.end(key))
        for part in self.writers.first:
            for inside in part.modules():
                after(inside, lambda *_, part=part: self.writers.ran.append(part))
        for i, block in enumerate(self.writers.blocks):  # before what enters a writer, which forgets what was made
            before(block, lambda *run, i=i: self._before(i, *run))
            after(block, lambda *run, site=i + 1: self._behind(site, run[-1]))
        stack.enter_context(self.makers)

    def _listen_to_layers(self, sites: Sequence[Site]) -> None:
        """Hear every call of a layer under the site that it writes, also where its `forward` is called."""
        counts: dict[int, int] = {}
        turns = {id(site.call.module): site.call.turns for site in sites}

        def key_of(module: nn.Module) -> int | None:
            turn = (counts[id(module)] - 1) % turns[id(module)] + 1  # a run of its own in every pass of the network
            mine = (i for i, s in enumerate(sites) if s.call.module is module and turn == s.call.turn)
            return next(mine, None)

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            counts[id(module)] = counts.get(id(module), 0) + 1
            self.makers.enter(key_of(module), tree_leaves((args, kwargs)))

        def after(module: nn.Module, output: Any) -> None:
            key = key_of(module)
            leaves = tree_leaves(output)
            if key is None:
                self.makers.leave(key)
            else:
                self._after(key, leaves[sites[key].leaf] if sites[key].leaf < len(leaves) else None)

        self._stack.enter_context(overheard((s.call.module for s in sites), after, before))

    def finish(self, drew: bool) -> None:
        """Take down the gradients in the weights, by name: a layer may have made new parameters in its forward."""
        self.drew = drew
        self.makers.leave(None)
        for key in (*self.writers.by_key, *(() if self.writers.named else ("given",))):
            weights = self.writers.weights(key)
            self.left[key] = {name: p.grad for name, p in weights.items()}
            self.shared[key] = {name for name, p in weights.items() if id(p) in self.makers.shared}
            if any(map(is_traceable_wrapper_subclass, weights.values())):
                self.sharded.add(key)

    # -- hooks ---------------------------------------------------------------------------------------

    def _after(self, key: Key, output: Any) -> None:
        made = first_tensor(members(output))
        if made is not None and torch.is_grad_enabled():
            self._hear(key, made, self.writers.named)
            if isinstance(key, tuple) or self.writers.named or self.writers.layers:
                self.made[key] = made.detach().clone()
        self.makers.leave(key)

    def _inside(self, key: Key, output: Any) -> None:
        self.makers.end(key)
        # What one autograd Function makes and the next one takes is seen by no torch function.
        if torch.is_grad_enabled():
            self.makers.note(output)

    def _before(self, i: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = stream_of(module, args, kwargs)
        if stream is None or not torch.is_grad_enabled():
            return
        received = self.given.setdefault(i, [])
        received.append(stream.detach().clone())
        if self._wrote is not None and self._wrote[0] == i and not same(self._wrote[1], received[-1]):
            received.append(self._wrote[1])  # something lies between the blocks: the state is what was written
        self._wrote = None
        if i == 0:
            self.writers.begin_blocks()
            self._hear("given", stream)

    def _behind(self, site: int, output: Any) -> None:
        made = first_tensor(members(output))
        self._wrote = None if made is None else (site, made.detach().clone())

    def _hear(self, key: Key, tensor: Tensor, here: bool = False) -> None:
        """Take down what flows into what made `tensor`: at the first tensor of its value, or right `here`."""
        if self.tape is not None:
            self._outputs.setdefault(key, []).append(tensor.clone())
            return
        signals: list[Tensor] = []
        self.heard.setdefault(key, []).append(signals)
        source, cut = (tensor, False) if here else self.makers.source(tensor)
        if source.grad_fn is None and not isinstance(source, nn.Parameter) and self.writers.is_trained(key):
            self.cut.add(key)  # what arrives there goes no further
            return
        if not source.requires_grad:
            if fragile(source, Reach(self.writers.model).tensors):
                raise CreditError(
                    f"Expected a stream that can be listened to, but it starts as a parameter or buffer of shape "
                    f"{tuple(source.shape)} that needs no gradient, and writing there would change the network. Call "
                    "requires_grad_() on it while recording."
                )
            carry_gradient(source)  # frozen parameters below: the signal would stop above
        if cut:
            self.cut.add(key)
        edge = get_gradient_edge(source)
        # A way in from above that the network does not use.
        door = None if self._send is None else source.clone()

        def arrives(grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
            """Run before the graph node of `source`, after the hooks of its tensor."""
            if self._sending is not None:
                whose, instead = self._sending
                return None if whose is not signals else _put(grads, edge.output_nr, instead)
            signal = grads[edge.output_nr]
            if signal is None:
                return None
            signals.append(signal.detach().clone())
            if door is not None:
                self._send_into(key, door, signals)
            return _put(grads, edge.output_nr, torch.zeros_like(signal)) if key in self._silence else None

        self._stack.callback(edge.node.register_prehook(arrives).remove)

    def _send_into(self, key: Key, door: Tensor, signals: list[Tensor]) -> None:
        """Send the signal that an earlier run had here into the module, and add up what its weights would get."""
        assert self._send is not None
        place = sum(map(len, self.heard[key])) - 1
        known = self._send.get(key, ())
        weights = {name: p for name, p in self.writers.weights(key).items() if not is_traceable_wrapper_subclass(p)}
        if place >= len(known) or not weights or key in self.failed:
            return
        self._sending = (signals, known[place].clone())  # a hook may write it in place
        try:
            found = torch.autograd.grad(
                door, list(weights.values()), known[place].clone(), retain_graph=True, allow_unused=True
            )
        except Exception as error:  # of the user's layers, which may not bear to be run twice
            self.failed[key] = in_one_line(error)
            return
        finally:
            self._sending = None
        sums = self.sent.setdefault(key, {})
        for name, grad in zip(weights, found):
            if grad is not None:
                sums[name] = grad.detach() + sums[name] if name in sums else grad.detach().clone()

    def derive(self, signals: Mapping[Key, Sequence[Tensor]]) -> None:
        """Set `sent` to the weight gradients that follow from signals by the derivative of what modules compute."""
        assert self.tape is not None
        twin, _ = self.tape.rerun()
        for key, outputs in self._outputs.items():
            weights = {name: twin(p) for name, p in self.writers.weights(key).items()}
            weights = {name: p for name, p in weights.items() if p.requires_grad}
            made = twin(outputs[0])
            if len(outputs) == 1 and signals.get(key) and weights and made.requires_grad:
                total = torch.stack([*signals[key]]).sum(0)
                found = torch.autograd.grad(made, list(weights.values()), total, retain_graph=True, allow_unused=True)
                self.sent[key] = {name: grad for name, grad in zip(weights, found) if grad is not None}

    # -- afterwards ----------------------------------------------------------------------------------

    def keys(self, states: Sequence[Tensor]) -> list[Key]:
        """Return where the signal of every site is read; an error where the run computed other states than these."""
        self._refuse_other_pass(states)
        if self.writers.layers:
            return list(self.writers.by_key)
        # A layer between stem and block 1 that passes its input on: what reached the stem lies below it.
        first: Key = 0 if 0 in self.writers.by_key else "given"
        for key, made in () if self.writers.named else reversed(self.made.items()):
            if any(self.heard[key]) and alike(self.batch_first(made), states[0]):
                first = key
        return [site or first for site in range(len(self.writers.blocks) + 1)]

    def signals(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Return the signal of every site; an error where there is none, or not one."""
        return [self._signal(site, key) for site, key in enumerate(self.keys(states))]

    def arrived(self) -> dict[Key, list[Tensor]]:
        """Return all signals by key, in the order in which they came."""
        return {key: [signal for signals in runs for signal in signals] for key, runs in self.heard.items()}

    def gradients(self, key: Key) -> dict[str, Tensor | None] | str:
        """Return the gradients in the weights of a writer, copied; or why there are none, a key of `notes.UNPROVEN`."""
        if not any(map(named_parameters_of, self.writers.shown_by(key))):
            return "no-parameters"
        if not self.left[key]:
            return "frozen"
        if key in self.sharded:
            return "sharded"
        return {name: grad if grad is None else grad.clone() for name, grad in self.left[key].items()}

    def batch_first(self, h: Tensor) -> Tensor:
        """Return a state or signal of the run, shaped as in a trace."""
        return h.transpose(0, 1) if self.axis else h

    def _signal(self, site: int, key: Key) -> Tensor:
        runs = [signals for signals in self.heard.get(key, ()) if signals]
        if not runs:
            ran = len(self.heard.get(key, ()))
            cut = ""
            if key in self.cut:
                cut = "It returns a copy cut off its graph (detach, no_grad), and " + (
                    "a module named in writers is read at its very output, where what arrives trains nothing: name the "
                    "last module below a feedback layer that ends it, or leave writers out. "
                    if self.writers.named
                    else "nothing was sent into what it computed: it is not trained (if it is frozen, say so with "
                    "requires_grad_(False)). "
                )
            times = f"{ran} time{'s' * (ran != 1)}"
            raise CreditError(
                f"Expected the backward pass to reach site {site}, but no signal came to what its module wrote (it ran "
                f"{times} with gradients on). {cut}Code that computes its updates without autograd, or runs its "
                "backward pass inside the module's forward, has nothing to record: give its signals as credit=function "
                "of the trace instead."
            )
        if len(runs) > 1:
            raise CreditError(
                f"Expected one signal for site {site}, but its module ran {len(runs)} times and each run got one. "
                "Record a backward that runs the network once per batch."
            )
        total = torch.stack(runs[0]).sum(0)
        layers = self.writers.layers
        return layers[site].batch_first(total) if layers else self.batch_first(total)

    def _refuse_other_pass(self, states: Sequence[Tensor]) -> None:
        for i, site in enumerate(self.writers.layers or () if not self.writers.named else ()):
            made = self.made.get(i)
            if made is not None and not alike(site.batch_first(made), states[i]):
                raise OtherPass(
                    "Expected the recorded pass to compute the states that are measured, but at site "
                    f"{i} ({site.call.name}) it computes {OTHER}"
                )
        for i in range(len(self.writers.blocks)):
            seen = self.given.get(i, ())
            if not seen or any(alike(self.batch_first(g), states[i]) for g in seen):
                continue
            if i == 0 and any(g.ndim == 3 and alike(g.transpose(0, 1), states[0]) for g in seen):
                self.axis = 1
                continue
            raise OtherPass(
                "Expected the recorded pass to compute the states that are measured, but block "
                f"{i + 1} received {OTHER}"
            )


def _put(grads: tuple[Tensor | None, ...], index: int, signal: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(signal if i == index else grad for i, grad in enumerate(grads))


def alike(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same values, up to rounding."""
    return a.shape == b.shape and torch.allclose(a, b.to(a.dtype), rtol=1e-4, atol=1e-5 * largest(b), equal_nan=True)
