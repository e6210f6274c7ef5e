"""A sample of the corpus (`make corpus`): networks built by hand, the field's, of transformers; norms by hand."""

from __future__ import annotations

import sys

import pytest

from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "corpus"))

import eleventh
import fifth_plain
import fifth_residual
import fourteenth
import hand_built
import hand_built_fourth
import hand_built_third
import ninth
import of_the_field
import of_transformers
import plain
import plain_more
import seventh
import sixth
import tenth_plain
import tenth_residual
import thirteenth
import thirteenth_plain
import twelfth
from case import Case, built, by_hand, judged, run

MODULES = (
    eleventh,
    tenth_plain,
    tenth_residual,
    thirteenth_plain,
    fifth_plain,
    fifth_residual,
    hand_built,
    hand_built_fourth,
    hand_built_third,
    of_the_field,
    plain,
    plain_more,
    of_transformers,
    sixth,
    seventh,
    ninth,
    twelfth,
    thirteenth,
    fourteenth,
)

READ = {
    *("plain branches", "widths", "a projection between", "state and weights", "five of seven", "all but the first"),
    *("(B, C, T), last", "(B, C, T), mean", "tokens merge", "ReZero outside", "DeepNet", "pre-norm outside", "nViT"),
    *("a scale between widths", "dense blocks", "GCNII", "1 encoder and decoder under names of their own"),
    *("fused add and norm: blocks hand on branch and residual, the final norm adds the last one",),
    "neural ODE by the classical Runge-Kutta rule: four calls of one field a step",
    "jumping knowledge: residual graph layers, the readout concatenates the states of all",
    "initial residual and identity map: (1-b) s + b W s with s = (1-a) A h + a h0, ReLU after each",
    "looped transformer with the input injected before each loop: h = block(h + x0)",
    *("a graph in a cache", "lists of lists", "a stack of one beside a run"),
    *("DRTP builder: labels go to every layer", "forward-forward: head on all layers but the first"),
    *("KAN layers with two weights each", "tied weights: the output layer is F.linear of the embedding"),
    *(
        "every step through one linear: (B * T, d)",
        "2 a data class as state",
        "6 ResNet by _make_layer and getattr, dict of features",
    ),
    *(
        "3 dict of state and mask; the mean over a mask that differs by sample",
        "8 norm, attention, norm, MLP in one flat list",
    ),
    "forward-forward: lengths removed between layers, all but the first read by a linear classifier",
    "6 wide ResNet: groups of blocks as attributes, the activation shared with the shortcut",
    "DRTP: blocks of layer, activation and an injected error, forward(x, labels)",
    "equilibrium propagation: a list of states relaxes, feedback by the transposed weights",
    "graph network: h + relu(W A norm(h)), convolutions and norms in two lists",
    "squeeze and excite between two convolutions",
    "h + down(up(h)) in one list",
    "GRU cell by hand: two linear layers a step, the gates by chunk",
    "dueling Q-network: a value and an advantage are added",
    "Hebbian convolutions whose weights are buffers, triangle activation, a linear classifier",
    "KAN by radial basis functions: two linear parts of a layer are added",
    "residual MLP by attributes: fc1 and fc2 of one width, x = x + relu(fc(norm(x)))",
    "ResNet by attributes: relu(x + conv(relu(conv(x)))), written out three times",
    "graph classifier: h_list, batch norms in a second list, the last without ReLU, residual sums",
    "video: convolutions on every frame, folded into the batch, then a GRU",
    "prototypes: an embedding by convolutions, logits are minus the distances to learned prototypes",
    "decoder called by keywords, the mask before the state, a tuple of one returned",
    "8 list with norm first: [norm, block, norm, block], called in pairs",
    "2 a load-balancing loss handed along, and not used by the loss",
    "greedy stages: every stage is given a detached input, also in eval mode",
    "forward-forward: normalised layers, detached; a classifier reads all but the first, concatenated",
    "FA in one module: a Function is applied to parameters of a ParameterDict",
    "LeNet by hand: conv2d and linear with parameters of the module itself",
    "minimal gated unit by hand, over a projected sequence",
    "edge convolutions on points: features of all layers are concatenated, then a convolution and a maximum",
    "tied autoencoder: the decoder uses the encoder's weights transposed; squares of its answer",
    "e-prop: a leaky recurrent net by hand, input and recurrent matrices of the module, three steps",
    *("T5ForConditionalGeneration", "XLNetLMHeadModel", "CLIPForImageClassification", "CvtForImageClassification"),
}
CUT = "greedy stages: every stage is given a detached input, also in eval mode"
REFUSED = {
    "U-net: down and up, concatenation; no one stream",
    "deep supervision: a head at every layer, all of them in the loss",
    *("highway layers", "parallel towers", "6 a trained neck between two stacks of one width"),
    "two towers of residual blocks, pictures and their mirror, added: no one stream",
    "value residual and a U of skips as speed runs of nanoGPT have them; no one stream",
    "symplectic steps of positions and momenta; two streams",
    *("h + down(up(h)) once", "reversible (a, b)", "joint image and text", "U-net"),
    "2 two streams that cross, in a Sequential",
    "2 value residual: the first layer's values go to all others",
}
CASES = [case for module in MODULES for case in module.cases() if case.name in READ | REFUSED]


def test_layers_that_are_cut_off_are_read_as_layers_where_the_reference_is_derived() -> None:
    case = next(case for case in CASES if case.name == CUT)
    assert judged(case, built(case), by_hand(case, built(case)), {}, derived=True).kind == "right"


def test_every_name_of_the_sample_is_in_the_corpus() -> None:
    assert {case.name for case in CASES} == READ | REFUSED


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_networks_are_read_right_or_refused_clearly(case: Case) -> None:
    outcome = run(case)
    assert outcome.kind == ("right" if case.name in READ else "refused clearly"), outcome.why
