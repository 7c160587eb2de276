"""The learning rate at an epoch: keyed to examples, and keyed to steps as in the old tutorial."""

from laboratory import findings
from lessons import lesson
from towers import schedules

QUESTION = "Is the learning rate the same in the n-th epoch for 1 and 2 GPUs?"
EXAMPLES, BATCH_PER_TOWER = 50_000, 128  # the tutorial's
TOWERS = (1, 2, 4, 8)
EPOCHS_PER_DECAY, DECAY_FACTOR, INITIAL = 350.0, 0.1, 0.1
LAST_EPOCH = 3000  # of the search
LAST_DRAWN, HEADLINE_RUN = 800, 256  # epochs; 100,000 steps of 128 images are 256


def run(setup: findings.Setup) -> findings.Finding:
    """Computes both rules for every number of towers; nothing is trained."""
    here = rule_keyed_to_examples()
    rows, first = [], {}
    for num_towers in TOWERS:
        batch = num_towers * BATCH_PER_TOWER
        old, new = (first_decay(rule, batch) for rule in (rule_keyed_to_steps, here))
        first[num_towers] = (old, new)
        at_400 = examples_at(400, batch)
        rows.append(
            [
                str(num_towers),
                f"{batch:,}",
                f"{old:,.0f}",
                f"{rule_keyed_to_steps(at_400, batch):g}",
                f"{new:,.0f}",
                f"{here(at_400):g}",
            ]
        )
    return findings.Finding(
        head=(
            "towers",
            "examples in a step",
            "old rule: first decay at epoch",
            "rate at epoch 400",
            "here: first decay at epoch",
            "rate at epoch 400",
        ),
        rows=rows,
        answer=answer(first),
        numbers={},
        draw=draw,
        data="",
    )


def answer(first: dict[int, tuple[float, float]]) -> str:
    """In one sentence, from the epochs of the first decay by either rule."""
    old, new = (len({round(rules[i]) for rules in first.values()}) == 1 for i in (0, 1))
    return (
        f"{'Yes' if old else 'Not'} in copies of the tutorial older than November 2018; "
        f"{'yes' if new else 'not'} in this package, where the rate depends on the examples seen."
    )


def rule_keyed_to_examples() -> schedules.LearningRate:
    """This package's."""
    return schedules.LearningRate(
        "exponential",
        INITIAL,
        EXAMPLES,
        epochs_per_decay=EPOCHS_PER_DECAY,
        decay_factor=DECAY_FACTOR,
    )


def rule_keyed_to_steps(examples_seen: int, batch: int) -> float:
    """The tutorial's until models PR #5658: `decay_steps` comes from the batch of one tower."""
    decay_steps = int(EXAMPLES / BATCH_PER_TOWER * EPOCHS_PER_DECAY)
    step = examples_seen // batch
    return INITIAL * DECAY_FACTOR ** (step // decay_steps)


def examples_at(epoch: float, batch: int) -> int:
    """The examples of the whole steps up to an epoch."""
    return int(epoch * EXAMPLES) // batch * batch


def first_decay(rule, batch: int) -> float:
    """The epoch of the first step whose rate is below the first one's, by halving."""
    low, high = 0, LAST_EPOCH * EXAMPLES // batch
    arguments = (batch,) if rule is rule_keyed_to_steps else ()
    while high - low > 1:
        middle = (low + high) // 2
        if rule(middle * batch, *arguments) < INITIAL:
            high = middle
        else:
            low = middle
    return high * batch / EXAMPLES


def draw(figure) -> None:
    """The rate against epochs, by the old rule and by this one."""
    old, new = figure.subplots(1, 2, sharey=True)
    here = rule_keyed_to_examples()
    epochs = range(0, LAST_DRAWN + 1, 2)
    for number, num_towers in enumerate(TOWERS):
        batch = num_towers * BATCH_PER_TOWER
        seen = [examples_at(epoch, batch) for epoch in epochs]
        label = f"{num_towers} tower{'s' if num_towers > 1 else ''}"
        # Lines of equal numbers coincide: each is drawn thinner than the last, so all are seen.
        style = {"label": label, "linestyle": "-", "linewidth": 7 - 2 * number}
        old.semilogy(epochs, [rule_keyed_to_steps(n, batch) for n in seen], **style)
        new.semilogy(epochs, [here(n) for n in seen], **style)
    old.set(xlabel="epoch", ylabel="learning rate", title="keyed to steps, as until late 2018")
    new.set(xlabel="epoch", title="keyed to examples seen, as here")
    for axes in (old, new):
        axes.set_ylim(5e-4, 0.2)
        axes.axvline(HEADLINE_RUN, color="#555555", linewidth=1, linestyle=":")
        axes.text(
            HEADLINE_RUN - 8,
            6e-4,
            "epoch 256:\nthe headline\nrun ends",
            ha="right",
            color="#555555",
        )
    old.legend(loc="center left", bbox_to_anchor=(0, 0.45))


LESSON = lesson.Lesson("learning_rate", QUESTION, run)
