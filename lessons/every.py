"""All lessons, in the order in which they are best taken."""

from lessons import averaging, learning_rate, losses

LESSONS = (averaging.LESSON, learning_rate.LESSON, losses.LESSON)
