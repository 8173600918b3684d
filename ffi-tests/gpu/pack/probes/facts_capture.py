"""What a stream capture permits, as far as the simulated driver has no rule for it. rules_capture.py and rules_captured.py ask
about cuStreamGetCtx, cuMemFree, cuCtxSynchronize and many others."""

from captures import in_captures, out
from registry import fact


@fact("captures")
def captures(cu):
    cu.enter()
    other, event = cu.stream(), cu.event()
    results = {
        "cuEventRecord on another stream": in_captures(cu, lambda _: cu.code("cuEventRecord", event, other)),
    }
    if cu.has("cuStreamGetCtx_v2"):
        name = "cuStreamGetCtx_v2"
        results[f"{name} of another stream"] = in_captures(cu, lambda _: cu.code(name, other, out(), out()))
        results[f"{name} of the captured stream"] = in_captures(cu, lambda stream: cu.code(name, stream, out(), out()))
    return {question: merged(answers) for question, answers in results.items()}


def merged(answers):
    """The scenarios of each answer, or the answer if all have the same."""
    found = {}
    for scenario, answer in answers.items():
        found.setdefault(answer, []).append(scenario)
    return found if len(found) > 1 else next(iter(found))
