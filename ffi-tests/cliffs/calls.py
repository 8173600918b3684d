"""Programs of allocator calls as lines of text, and their mutations. benches/cliffs/cliffs.c defines what they mean."""

from typing import NamedTuple

# `room` is an option too, with a value.
OPTIONS = ("growth", "gc", "stamps", "split", "quarantine", "coalesce", "cuda")
STREAMS = {"streams": 512, "first": 511}
CHUNKS = {"n": 1000, "k": 64, "every": 64, "from": 1000, "skip": 64}
# The fields of each step, and the largest value of each.
STEPS = [
    (
        "alloc",
        {"n": 1000, "k": 64, "size": 65_536, "other": 65_536, "share": 100, "step": 4096, "align": 24, **STREAMS, "before": 100},
    ),
    ("free", {**CHUNKS, "order": 3, **STREAMS}),
    ("use", CHUNKS | STREAMS),
    ("sync", STREAMS),
    ("forget", STREAMS),
    ("begin", STREAMS),
    ("end", STREAMS),
    ("release", {}),
    ("frontier", {"share": 100}),
    ("trim", {}),
    ("limit", {}),
    # On the simulated driver only.
    ("hold", STREAMS),
    ("done", {}),
    # Requests are twice as likely: they are what is measured mostly.
    ("alloc", {"n": 1000, "k": 64, "size": 64, "align": 12, **STREAMS, "before": 100}),
]
# Values at which behaviour often changes.
USUAL = (0, 1, 2, 3, 4, 8, 9, 12, 64, 90, 100, 500, 610, 987)
# Steps of a program at most, so that the worst ones can still be read.
MOST = 12
BITS = (1 << 64) - 1


class Random:
    """SplitMix64: the same seed tries the same programs with every version of Python."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = bits = (self.state + 0x9E3779B97F4A7C15) & BITS
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & BITS
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & BITS
        return bits ^ bits >> 31

    def below(self, bound):
        return self.next() % max(bound, 1)

    def choice(self, values):
        return values[self.below(len(values))]


class Step(NamedTuple):
    name: str
    most: dict
    values: dict

    @classmethod
    def parse(cls, text):
        name, *words = text.split()
        most = next(fields for known, fields in STEPS if known == name)
        given = {field: int(value) for field, value in (word.split("=") for word in words)}
        if unknown := given.keys() - most.keys():
            raise ValueError(f"{name} has no field {unknown}")
        return cls(name, most, {field: given.get(field, 0) for field in most})

    @classmethod
    def new(cls, random):
        name, most = random.choice(STEPS)
        step = cls(name, most, dict.fromkeys(most, 0))
        for _ in most:
            step = step.changed(random)
        return step

    def changed(self, random):
        at = random.below(len(self.most))
        if not self.most:
            return self
        field = list(self.most)[at]
        most, value = self.most[field], self.values[field]
        changes = [
            lambda: 0,
            lambda: random.next() % (most + 1),
            lambda: value * 2,
            lambda: value // 2,
            lambda: (value + random.choice([-1, 1])) & BITS,
            lambda: random.choice(USUAL),
        ]
        return self.with_value(field, min(random.choice(changes)(), most))

    def with_value(self, field, value):
        return self._replace(values=self.values | {field: value})

    def __str__(self):
        return " ".join([self.name, *(f"{field}={value}" for field, value in self.values.items() if value)])


class Program(NamedTuple):
    options: list
    room: int
    steps: list

    @classmethod
    def parse(cls, text):
        """Reads `OPTIONS; STEP; STEP...`."""
        head, *steps = text.split(";")
        options = [word for word in head.split() if not word.startswith("room=")]
        if unknown := set(options) - set(OPTIONS):
            raise ValueError(f"there is no option {unknown}")
        rooms = [int(word.removeprefix("room=")) for word in head.split() if word.startswith("room=")]
        try:
            return cls(options, rooms[0] if rooms else 0, [Step.parse(step) for step in steps])
        except StopIteration:
            raise ValueError(f"there is no such step in {text}") from None

    def mutated(self, random, second):
        """One to four changes, some of which take steps of a second program."""
        program = self
        for _ in range(1 + random.below(4)):
            program = program._changed(random, second)
        return program._replace(steps=program.steps[:MOST])

    def _changed(self, random, second):
        options, room, steps = list(self.options), self.room, list(self.steps)
        at, change = random.below(len(steps)), random.below(12)
        if change == 0:
            option = random.choice(OPTIONS)
            options.remove(option) if option in options else options.append(option)
        elif change == 1:
            room = random.choice([0, 1, 2, 3, 8])
        elif change == 2:
            steps.insert(random.below(len(steps) + 1), Step.new(random))
        elif change == 6:
            steps[at + 1 :] = second.steps[random.below(len(second.steps)) :]
        elif not steps:
            pass
        elif change == 3:
            del steps[at]
        elif change == 4:
            steps.insert(random.below(len(steps) + 1), steps[at])
        elif change == 5:
            other = random.below(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
        else:
            steps[at] = steps[at].changed(random)
        return Program(options, room, steps)

    def simpler(self):
        """The program without one step, option or field, for each that it has."""
        without = lambda values, at: values[:at] + values[at + 1 :]
        yield from (self._replace(steps=without(self.steps, at)) for at in range(len(self.steps)))
        yield from (self._replace(options=without(self.options, at)) for at in range(len(self.options)))
        if self.room:
            yield self._replace(room=0)
        for at, step in enumerate(self.steps):
            for field in (field for field, value in step.values.items() if value):
                yield self._replace(steps=[*self.steps[:at], step.with_value(field, 0), *self.steps[at + 1 :]])

    def __str__(self):
        room = [f"room={self.room}"] if self.room else []
        return "; ".join([" ".join([*self.options, *room]), *map(str, self.steps)])
