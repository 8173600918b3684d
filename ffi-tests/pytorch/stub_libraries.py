"""Libraries in place of NVIDIA's, which PyTorch is linked with: for each that is missing one that has every symbol that
torch's libraries import from it, under the version that they want, and answers 0 to everything.

A few functions have to do a little more, give a handle say: they are written by hand in stubs/, a file a library. None
computes anything.
"""

import pathlib

from elftools.elf.elffile import ELFFile

import programs

# What NVIDIA's libraries are called, those that PyTorch is linked with, and those that the simulation has.
OF_NVIDIA, SIMULATED = ("libcu", "libnv", "libnccl"), ("libcuda.so", "libcudart.so")
BY_HAND = pathlib.Path(__file__).parent / "stubs"


def imports(library):
    """What a library is linked with, and the symbols that it imports, each with its version and the SONAME of that."""
    with open(library, "rb") as file:
        elf = ELFFile(file)
        tags = elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        needed = {tag.needed for tag in tags}
        owners = {}
        table, numbers = elf.get_section_by_name(".gnu.version_r"), elf.get_section_by_name(".gnu.version")
        for needs, versions in table.iter_versions() if table else ():
            owners |= {version["vna_other"]: (version.name, needs.name) for version in versions}
        symbols = set()
        for place, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name:
                number = numbers.get_symbol(place)["ndx"]
                symbols.add((symbol.name, *owners.get(number, (None, None))))
    return needed, symbols


def stubs(needed, symbols):
    """The libraries to make: their SONAMEs, each with its symbols by version."""
    found = {name: {} for name in sorted(needed) if name.startswith(OF_NVIDIA) and not name.startswith(SIMULATED)}
    stem = lambda soname: soname.removeprefix("lib").partition(".so")[0]
    for symbol, version, owner in sorted(symbols, key=str):
        if version is None:
            # The loader takes a symbol without a version from anywhere: from the library whose name it begins with, and with
            # the longest such name.
            begins = [soname for soname in found if symbol.lower().startswith(stem(soname).removesuffix("_host").lower())]
            owner = max(begins, key=len, default=None)
        if owner in found:
            found[owner].setdefault(version, []).append(symbol)
    return found


def make(folder, soname, versions):
    source = folder / f"{soname}.c"
    once = sorted({symbol for symbols in versions.values() for symbol in symbols})
    source.write_text("".join(f"__attribute__((weak)) long {symbol}(void) {{ return 0; }}\n" for symbol in once))
    # The compiler knows some of the names as other functions than these.
    command = [programs.compiler("c"), *"-std=c11 -O1 -g -shared -fPIC -fno-builtin".split(), source]
    by_hand = BY_HAND / f"{soname.removeprefix('lib').partition('.so')[0]}.c"
    command += [by_hand] if by_hand.exists() else []
    scripts = [f"{version} {{ global: {'; '.join(symbols)}; }};\n" for version, symbols in versions.items() if version]
    if scripts:
        (folder / f"{soname}.map").write_text("".join(scripts))
        command.append(f"-Wl,--version-script={folder / soname}.map")
    # Another process may be loading the existing one.
    new = folder / f"{soname}.new"
    programs.check([*command, f"-Wl,-soname,{soname}", "-o", new])
    new.replace(folder / soname)


def build(torch):
    """The folder with all of them, made once for the libraries in a folder of torch's."""
    folder = programs.SCRATCH / "pytorch/stubs"

    def build(done):
        needed, symbols = set(), set()
        for library in torch.glob("*.so*"):
            more = imports(library)
            needed, symbols = needed | more[0], symbols | more[1]
        found = stubs(needed, symbols)
        assert found, f"the libraries in {torch} are linked with none of NVIDIA's"
        for soname, versions in found.items():
            make(folder, soname, versions)
        done.write_text(f"for {torch}\n")

    programs.built("pytorch/stubs/done", [BY_HAND], build)
    return folder
