"""Draws results/figures from the records under results: what `make evidence` commits. Seconds, and no training.

python scripts/draw_results.py
"""

from walkback.audit.records import read_records
from walkback.exhibits.figures import save_figures


def main() -> None:
    saved = save_figures(read_records("results"), "results/figures", widths=["double"], formats=["png"], dpi=150)
    print(f"{len(saved.files)} figures: results/figures; not drawn: {', '.join(saved.not_drawn) or 'none'}")


if __name__ == "__main__":
    main()
