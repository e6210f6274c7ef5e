"""The former place of notes on a claim and of the witness of a measurement."""

from walkback.measures.witness import SORTED as SORTED
from walkback.measures.witness import class_sorted as class_sorted
from walkback.verdict.notes import earlier_epoch as earlier_epoch
from walkback.verdict.notes import on_claim as on_claim
