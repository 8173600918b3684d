"""Programs with the interposer, on the simulated driver: compiling them, running them, and what the interposer saw."""

import pathlib
import subprocess

import programs
from programs import LIB, PREFIX, ROOT, SIMULATION, compiler, run

HERE = pathlib.Path(__file__).parent
BFC = PREFIX / "bin/bfc"
INTERPOSER = LIB / "libbfc_preload.so"
RUNTIMES = {11: "libcudart.so.11.0", 12: "libcudart.so.12", 13: "libcudart.so.13"}

# What the interposer sees of a program that the pool serves, of one that is bypassed, and of one without CUDA.
SERVED = ["loaded", "served", "exit driver=mapped"]
BYPASSED, NOTHING_SEEN = ["loaded", "exit driver=mapped"], ["looked-up", "called", "served"]


def compile(name, source, link=12, flags=()):
    """Compiles a source of this folder, once for all processes that run tests.

    `link`: 11, 12 or 13, the major version of the simulated libcudart.so; "static", whose symbols are hidden; "driver", the
    simulated libcuda.so.1 itself; None, nothing of CUDA; "library", a shared library with nothing of CUDA in it.
    """

    def build(program):
        command = [compiler("c"), *"-std=c11 -O1 -g -Wall -Wextra -Werror -pthread".split()]
        command += [f"-DCUDART_MAJOR={link if link in RUNTIMES else 12}"]
        command += [f"-I{folder}" for folder in (ROOT / "include", ROOT / "crates/simcuda", HERE)]
        command += ["-shared", "-fPIC"] if link == "library" else []
        command += [HERE / source, *flags, "-o", program]
        if link in RUNTIMES:
            command.append(SIMULATION / RUNTIMES[link])
        elif link in ("static", "driver"):
            command.append(SIMULATION / {"static": "libcudart_static.a", "driver": "libcuda.so.1"}[link])
        programs.check([*command, "-ldl", "-lpthread"])

    return programs.built(f"preload/{name}", [HERE, ROOT / "crates/simcuda"], build)


def settings(text):
    """The variables in `A=1 B=2`."""
    return dict(setting.split("=", 1) for setting in text.split())


def environment(**more):
    """The variables of a program on the simulated driver, which finds libbfc by no path. None unsets one."""
    return programs.environment(**{"LD_LIBRARY_PATH": SIMULATION} | more)


def preloaded(before=(), behind=(), **more):
    """The same with the interposer, and with other libraries before and after it."""
    return environment(LD_PRELOAD=":".join(map(str, [*before, INTERPOSER, *behind])), **more)


def saw(check):
    """What the interposer wrote into a file: its lines without the process numbers, in order."""
    lines = check.read_text().splitlines() if check.exists() else []
    return [line.partition(" ")[2] for line in lines]


def judge(lines, there, absent=()):
    """Each of the beginnings is that of a line, as whole words, or is that of none."""
    has = lambda begin: any(line == begin or line.startswith(f"{begin} ") for line in lines)
    assert not [begin for begin in there if not has(begin)], lines
    assert not [begin for begin in absent if has(begin)], lines


def served(check, *command, there=SERVED, absent=(), before=(), behind=(), **more):
    """The program ends well, and the interposer saw that."""
    run(*command, env=preloaded(before, behind, BFC_PRELOAD_CHECK=check, **more))
    judge(saw(check), there, absent)


def alike(check, *command, there=(), absent=(), **more):
    """The program says the same and ends the same with the interposer and without."""
    alone = run(*command, env=environment(**more), status=None)
    assert run(*command, env=preloaded(BFC_PRELOAD_CHECK=check, **more), status=None) == alone
    judge(saw(check), there, absent)


def reported(report):
    """What `bfc report` says."""
    done = subprocess.run([BFC, "report", report], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(trace):
    """A trace, without what was reserved and not written any more."""
    return trace.read_bytes().split(b"\0")[0].decode()


def events(trace):
    """The events of a trace, without remarks."""
    lines = (line.split(" # ")[0] for line in written(trace).splitlines() if not line.startswith("%"))
    return "".join(f"{line}\n" for line in lines)


def replay(trace, *options):
    """What `bfc replay` says of a trace."""
    return run(BFC, "replay", *options, "--library", LIB, trace, env=environment())
