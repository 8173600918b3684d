"""Programs with the interposer, on the simulated driver: compiling them, running them, and what the interposer saw."""

import fcntl
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PREFIX = pathlib.Path(os.environ["BFC_TESTS_PREFIX"])
LIB, BFC = PREFIX / "lib", PREFIX / "bin/bfc"
INTERPOSER = LIB / "libbfc_preload.so"
SIMULATION = pathlib.Path(os.environ["BFC_TESTS_SIMULATION"])
FOLDER = pathlib.Path(os.environ["BFC_TESTS_SCRATCH"]) / "preload"
RUNTIMES = {11: "libcudart.so.11.0", 12: "libcudart.so.12", 13: "libcudart.so.13"}

# What the interposer sees of a program that the pool serves, of one that is bypassed, and of one without CUDA.
SERVED = ["loaded", "served", "exit driver=mapped"]
BYPASSED, NOTHING_SEEN = ["loaded", "exit driver=mapped"], ["looked-up", "called", "served"]


def compile(name, source, link=12, flags=()):
    """Compiles a source of this folder, once for all processes that run tests.

    `link`: 11, 12 or 13, the major version of the simulated libcudart.so; "static", whose symbols are hidden; "driver", the
    simulated libcuda.so.1 itself; None, nothing of CUDA; "library", a shared library with nothing of CUDA in it.
    """
    program = FOLDER / name
    program.parent.mkdir(parents=True, exist_ok=True)
    inputs = [*HERE.rglob("*.[ch]"), *(HERE.parent / "simcuda").rglob("*.[ch]"), *SIMULATION.iterdir(), *LIB.glob("*.so")]
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists() and program.stat().st_mtime > max(path.stat().st_mtime for path in inputs):
            return program
        command = [os.environ.get("CC") or "cc", *"-std=c11 -O1 -g -Wall -Wextra -Werror -pthread".split()]
        command += [f"-DCUDART_MAJOR={link if link in RUNTIMES else 12}"]
        command += [f"-I{folder}" for folder in (ROOT / "include", HERE.parent / "simcuda", HERE)]
        command += ["-shared", "-fPIC"] if link == "library" else []
        command += [HERE / source, *flags, "-o", program]
        if link in RUNTIMES:
            command.append(SIMULATION / RUNTIMES[link])
        elif link in ("static", "driver"):
            command.append(SIMULATION / {"static": "libcudart_static.a", "driver": "libcuda.so.1"}[link])
        done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return program


def settings(text):
    """The variables in `A=1 B=2`."""
    return dict(setting.split("=", 1) for setting in text.split())


def environment(**more):
    """The variables of a program on the simulated driver: the user's own settings are not the test's. None unsets one."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("BFC_", "SIMCUDA_", "LD_"))}
    found |= {"LD_LIBRARY_PATH": SIMULATION, "SIMCUDA_DEVICES": "2"} | more
    return {name: str(value) for name, value in found.items() if value is not None}


def preloaded(before=(), behind=(), **more):
    """The same with the interposer, and with other libraries before and behind it."""
    return environment(LD_PRELOAD=":".join(map(str, [*before, INTERPOSER, *behind])), **more)


def run(*command, env, status=0):
    """Runs a program to its end: all that it says. `status` None accepts every one."""
    done = subprocess.run(
        [str(word) for word in command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
        cwd=ROOT,
    )
    assert status is None or done.returncode == status, f"status {done.returncode}:\n{done.stdout}"
    return done.stdout if status is not None else (done.returncode, done.stdout)


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
