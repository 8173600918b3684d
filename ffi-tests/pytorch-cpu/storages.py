"""Which tensors there are, and whose memory each is."""

import gc

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def tensors():
    """Those that there are now, and that have memory of the CPU."""
    found = []
    for thing in gc.get_objects():
        # isinstance would ask what is lazy, and some of it warns.
        if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu" and thing.untyped_storage().nbytes():
            found.append(thing)
    return found


class Storages(TorchDispatchMode):
    """Asks for each new piece of memory whose it is: as soon as the operation that made it is through, also in the
    backward pass."""

    def __init__(self, owner):
        super().__init__()
        self.owner = owner
        self.owners = {}
        self.misaligned = 0
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        given = {tensor.untyped_storage().data_ptr() for tensor in leaves((arguments, keywords))}
        result = function(*arguments, **(keywords or {}))
        for tensor in leaves(result):
            storage = tensor.untyped_storage()
            # What comes from elsewhere in shared memory is the worker's.
            if storage.nbytes() and storage.data_ptr() not in given and not tensor.is_shared():
                name = str(self.owner(tensor))
                self.owners[name] = self.owners.get(name, 0) + 1
                self.misaligned += storage.data_ptr() % 64 != 0
                self.bytes += storage.nbytes()
        return result

    def facts(self):
        return {"by owner": self.owners, "misaligned": self.misaligned, "bytes": self.bytes}


def leaves(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
