"""Installing and uninstalling: folders, the manifest, other processors, man pages and completions, and libbfc as a part of
another CMake project."""

import gzip
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import programs

SOURCE = """#include <bfc.h>
#include <stdio.h>
int main(void) { return puts(bfc_version()) < 0; }
"""
PROJECT = """cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES {languages})
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
{find}
if(TARGET bfc::bfc AND NOT "{languages}" STREQUAL NONE)
  add_executable(app app.c)
  target_link_libraries(app PRIVATE bfc::bfc)
  add_executable(app_static app.c)
  target_link_libraries(app_static PRIVATE bfc::static)
  install(TARGETS app)
endif()
"""
# They share the folder in which cargo builds, each with settings of its own.
OF_ONE_BUILD = pytest.mark.xdist_group("cmake-cargo")
# Each format has one folder, which every test empties first.
OF_FORMAT = {form: pytest.mark.xdist_group(form) for form in ("TGZ", "DEB", "RPM")}
TOOLS = [("TGZ", "tar", "tar"), ("DEB", "dpkg-shlibdeps", "dpkg-dev"), ("RPM", "rpmbuild", "rpm")]


def run(*command, status=0, **options):
    """Runs a command; what it prints."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    assert done.returncode == status, f"status {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture
def xtask(root):
    """Runs a chore with variables."""

    def xtask(*words, status=0, **variables):
        return run("cargo", "xtask", *words, status=status, cwd=root, env=os.environ | variables)

    return xtask


@pytest.fixture
def installed(xtask, tmp_path):
    """A prefix with the debug build."""
    xtask("install", "--debug", "--prefix", tmp_path / "prefix")
    return tmp_path / "prefix"


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def configure(folder, find, *options, languages="C", status=0):
    """Configures a project that uses libbfc; what CMake prints."""
    folder.mkdir(exist_ok=True)
    (folder / "app.c").write_text(SOURCE)
    (folder / "CMakeLists.txt").write_text(PROJECT.format(find=find, languages=languages))
    return run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", "--fresh", *options, status=status)


def build(folder, version, **options):
    run("cmake", "--build", folder / "build", **options)
    for program in ("app", "app_static"):
        assert run(folder / "build" / program).strip() == version


@pytest.fixture(scope="session")
def version(root):
    return run("cargo", "pkgid", "--manifest-path", root / "Cargo.toml", "--offline").strip().rpartition("#")[2].split("@")[-1]


@pytest.fixture(scope="session")
def soname(root):
    (soname,) = re.findall(r'BFC_SONAME "(.*)"', (root / "include/bfc.h").read_text())
    return soname


@pytest.mark.parametrize("libdir", ["lib64", "lib/x86_64-linux-gnu"])
def test_libdir_and_destdir(xtask, tmp_path, version, libdir):
    said = xtask("install", "--debug", "--prefix", "/opt/bfc", "--libdir", libdir, DESTDIR=str(tmp_path / "stage"))
    assert said.endswith(f"libbfc is staged in {tmp_path}/stage/opt/bfc, for the prefix /opt/bfc\n")
    # A package has no list of ours, whose sums would be wrong after stripping.
    assert "share/bfc/install-manifest.txt" not in files(tmp_path / "stage/opt/bfc")
    assert not any(name.startswith("lib/") for name in files(tmp_path / "stage/opt/bfc")) or libdir.startswith("lib/")
    prefix = (tmp_path / "stage/opt/bfc").rename(tmp_path / "moved")
    assert version in run(prefix / "bin/bfc", "info")

    # By the folder itself: in which of them below a prefix CMake looks depends on the distribution.
    link = tmp_path / "link"
    link.symlink_to(prefix / libdir / "cmake/bfc")
    for folder in (link.resolve(), link):
        configure(tmp_path / "app", f"find_package(bfc {version} EXACT REQUIRED)", f"-Dbfc_DIR={folder}")
        build(tmp_path / "app", version)

    if shutil.which("pkg-config"):
        environment = os.environ | {"PKG_CONFIG_PATH": str(prefix / libdir / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "bfc", env=environment).split()
        run("cc", tmp_path / "app/app.c", *flags, f"-Wl,-rpath,{prefix / libdir}", "-o", tmp_path / "by-pkg-config")
        assert run(tmp_path / "by-pkg-config").strip() == version


def test_a_libdir_outside_of_the_prefix_is_refused(xtask, tmp_path):
    said = xtask("install", "--debug", "--prefix", tmp_path / "prefix", "--libdir", "../lib", status=1)
    assert "it is not a folder below" in said and not (tmp_path / "prefix").exists()


def test_a_target_that_is_named(xtask, installed, root, tmp_path, version):
    triple, prefix = "x86_64-unknown-linux-gnu", tmp_path / "by-target"
    xtask("install", "--debug", "--target", triple, "--prefix", prefix)
    assert files(prefix) == files(installed)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"), triple)
    assert (prefix / "lib/libbfc.so").read_bytes() == (target / "debug/libbfc.so").read_bytes()
    for name in ("cmake/bfc/bfcConfigVersion.cmake", "cmake/bfc/bfcTargets.cmake", "pkgconfig/bfc.pc"):
        assert (prefix / "lib" / name).read_text() == (installed / "lib" / name).read_text()
    assert version in run(prefix / "bin/bfc", "info")


@pytest.mark.parametrize(
    "triple, why",
    [
        ("nonsense", "rustc has no such target"),
        ("x86_64-pc-windows-gnu", "libbfc supports 64-bit Linux with glibc only"),
        ("i686-unknown-linux-gnu", "libbfc supports 64-bit Linux with glibc only"),
        ("x86_64-unknown-linux-musl", "libbfc supports 64-bit Linux with glibc only"),
        ("aarch64-unknown-linux-gnu", "its standard library is not installed: rustup target add aarch64-unknown-linux-gnu"),
    ],
)
def test_a_target_that_cannot_be_built_for_is_refused(xtask, tmp_path, triple, why):
    sysroot = run("rustc", "--print", "sysroot").strip()
    if pathlib.Path(sysroot, "lib/rustlib", triple).exists() and "installed" in why:
        pytest.skip(f"{triple} is installed")
    said = xtask("install", "--target", triple, "--prefix", tmp_path / "prefix", status=1)
    assert f"cannot build for {triple}: {why}" in said and "Compiling libbfc" not in said
    assert not (tmp_path / "prefix").exists()


def test_uninstall_removes_what_was_installed(xtask, installed):
    run("sha256sum", "--check", "--quiet", "share/bfc/install-manifest.txt", cwd=installed)
    xtask("uninstall", "--prefix", installed)
    assert not installed.exists()


def test_uninstall_keeps_what_is_not_of_libbfc(xtask, tmp_path):
    prefix = tmp_path / "prefix"
    (prefix / "include").mkdir(parents=True)
    (prefix / "lib/cmake").mkdir(parents=True)
    (prefix / "include/other.h").touch()
    xtask("install", "--debug", "--prefix", prefix)
    xtask("uninstall", "--prefix", prefix)
    assert files(prefix) == {"include/other.h"}
    # It was there before, and empty.
    assert (prefix / "lib/cmake").is_dir() and not (prefix / "bin").exists()


def test_uninstall_names_and_keeps_changed_files(xtask, installed):
    changed = installed / "share/bfc/examples/c/training.c"
    changed.write_text("changed")
    said = xtask("uninstall", "--prefix", installed, status=1)
    assert f"kept {changed}" in said
    assert files(installed) == {"share/bfc/examples/c/training.c", "share/bfc/install-manifest.txt"}
    changed.unlink()
    xtask("uninstall", "--prefix", installed)
    assert not installed.exists()


def test_uninstall_needs_a_manifest_of_paths_below_the_prefix(xtask, tmp_path):
    assert "there is no" in xtask("uninstall", "--prefix", tmp_path, status=1)
    victim = tmp_path / "victim"
    victim.touch()
    manifest = tmp_path / "prefix/share/bfc/install-manifest.txt"
    manifest.parent.mkdir(parents=True)
    for name in ("../victim", victim):
        manifest.write_text(run("sha256sum", victim).split()[0] + f"  {name}\n")
        assert "not a path below" in xtask("uninstall", "--prefix", tmp_path / "prefix", status=1)
        assert victim.exists()


def test_installing_again_removes_files_of_the_earlier_version(xtask, installed):
    before = files(installed)
    (installed / "include/old.h").write_text("old")
    (installed / "include/changed.h").write_text("changed")
    (installed / "include/mine.h").touch()
    with open(installed / "share/bfc/install-manifest.txt", "a") as manifest:
        manifest.write(run("sha256sum", "include/old.h", cwd=installed))
        manifest.write(f"{'0' * 64}  include/changed.h\n")
    said = xtask("install", "--debug", "--prefix", installed)
    assert f"kept {installed / 'include/changed.h'}" in said
    assert files(installed) == before | {"include/changed.h", "include/mine.h"}


@pytest.mark.parametrize(
    "system, processor, fits",
    [("Linux", "x86_64", True), ("Linux", "AMD64", True), ("Linux", "aarch64", False), ("Windows", "AMD64", False)],
)
def test_a_library_for_another_machine_is_refused(installed, tmp_path, system, processor, fits):
    assert os.uname().machine == "x86_64"
    options = [f"-DCMAKE_SYSTEM_NAME={system}", f"-DCMAKE_SYSTEM_PROCESSOR={processor}", f"-DCMAKE_PREFIX_PATH={installed}"]
    said = configure(
        tmp_path / "app", "find_package(bfc REQUIRED)", *options, languages="NONE", status=0 if fits else 1
    )
    assert ("(for 64-bit Linux on x86_64)" in said) != fits


@OF_ONE_BUILD
@pytest.mark.parametrize(
    "find",
    [
        "add_subdirectory({root} libbfc)",
        "include(FetchContent)\nFetchContent_Declare(bfc SOURCE_DIR {root})\nFetchContent_MakeAvailable(bfc)",
    ],
    ids=["add_subdirectory", "FetchContent"],
)
def test_as_a_part_of_a_cmake_project(root, tmp_path, version, find):
    configure(tmp_path / "app", find.format(root=root), f"-DBFC_CARGO_TARGET_DIR={programs.CMAKE_CARGO}")
    build(tmp_path / "app", version, env=os.environ | programs.QUICK_BUILD)
    cross = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    assert "cargo xtask install --target" in configure(tmp_path / "app", find.format(root=root), *cross, status=1)


@OF_ONE_BUILD
@pytest.mark.parametrize("kind, is_stripped", [("Release", True), ("RelWithDebInfo", False)])
def test_an_installed_application_of_such_a_project_has_the_library_with_it(root, tmp_path, version, soname, kind, is_stripped):
    app, prefix = tmp_path / "app", tmp_path / "prefix"
    options = [f"-DBFC_CARGO_TARGET_DIR={programs.CMAKE_CARGO}", f"-DCMAKE_BUILD_TYPE={kind}"]
    configure(app, f"add_subdirectory({root} libbfc)", *options)
    build(app, version, env=os.environ | programs.QUICK_BUILD)
    run("cmake", "--install", app / "build", "--prefix", prefix)
    shutil.rmtree(app / "build")
    assert run(prefix / "bin/app").strip() == version
    assert files(prefix) == {"bin/app", f"lib/{soname}"}
    assert (".debug_info" in run("readelf", "--sections", "--wide", prefix / "lib" / soname)) != is_stripped


def test_a_project_that_does_not_link_it_is_installed_without_it(root, tmp_path):
    configure(tmp_path / "app", f"add_subdirectory({root} libbfc)", languages="NONE")
    run("cmake", "--build", tmp_path / "app/build")
    run("cmake", "--install", tmp_path / "app/build", "--prefix", tmp_path / "prefix")
    assert not files(tmp_path / "prefix")


def test_the_source_as_a_project_of_its_own_is_refused(root, tmp_path):
    said = run("cmake", "-G", "Ninja", "-S", root, "-B", tmp_path, status=1)
    assert "cargo xtask install --prefix DIR" in said


def test_man_pages(installed):
    pages = installed / "share/man/man1"
    help = run(installed / "bin/bfc", "help")
    commands = set(re.findall(r"^  ([a-z]+) ", help.split("Commands:")[1].split("Options:")[0], re.MULTILINE)) - {"help"}
    assert len(commands) == 7
    assert {page.name for page in pages.iterdir()} == {"bfc.1"} | {f"bfc-{command}.1" for command in commands}
    if shutil.which("man") is None:
        pytest.skip("man is not installed (Debian: apt-get install man-db)")
    for page in pages.iterdir():
        environment = os.environ | {"MANROFFSEQ": "", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"}
        said = run("man", "--warnings", "--local-file", page, env=environment)
        assert "SYNOPSIS" in said and "warning" not in said
        assert "generate" not in said
        # What the help of the command ends with: examples, exit codes, fields. No line is joined with the next or broken.
        command = page.stem.removeprefix("bfc").strip("-").split()
        ends = run(installed / "bin/bfc", *command, "--help", env=os.environ | {"COLUMNS": "200"}).partition("\nExamples:\n")[2]
        shown = {line.strip() for line in said.splitlines()}
        lost = [line for line in ends.splitlines() if line.startswith("  ") and line.strip() not in shown]
        assert not lost, f"{page.name}: {lost}"
    assert "EXIT STATUS" in run("man", "--local-file", pages / "bfc-run.1", env=environment)


COMPLETE = {
    "bash": """source {share}/bash-completion/completions/bfc.bash
        COMP_WORDS=(bfc re) COMP_CWORD=1; _bfc bfc re bfc; echo "${{COMPREPLY[@]}}" """,
    "fish": "source {share}/fish/vendor_completions.d/bfc.fish; complete -C 'bfc re'",
    "zsh": """_arguments() {{ :; }}; compdef() {{ :; }}; _describe() {{ print -r -- ${{commands[@]%%:*}}; }}
        source {share}/zsh/site-functions/_bfc; _bfc_commands""",
}


@pytest.mark.parametrize("shell", COMPLETE)
def test_completions(installed, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    said = run(shell, "-c", COMPLETE[shell].format(share=installed / "share"))
    words = {line.split("\t")[0] for line in said.splitlines()} if shell == "fish" else set(said.split())
    assert {"replay", "report"} <= words and "generate" not in words


@pytest.fixture
def packages(xtask, root, tmp_path):
    """Makes the packages of a format; the folder with them."""

    def packages(form, **variables):
        # CMake and Ninja are on the PATH, so nothing is fetched.
        no_network = {"LIBBFC_TESTS_CACHE": str(tmp_path / "cache"), "PIP_INDEX_URL": "http://127.0.0.1:9"}
        said = xtask("package", "--format", form, **no_network, **variables)
        folder = root / "target/packages" / form.lower()
        run("sh", "-c", "sha256sum --check *.sha256", cwd=folder)
        made = {path.name for path in folder.iterdir()}
        assert made == {name for name in made if f"{name}.sha256" in made or name.endswith(".sha256")}
        assert {line for line in said.splitlines() if line.startswith(str(folder))} == {str(folder / name) for name in made}
        return folder

    return packages


@pytest.mark.parametrize("form, tool, package", [pytest.param(*row, marks=OF_FORMAT[row[0]]) for row in TOOLS])
def test_two_runs_make_the_same_packages(packages, form, tool, package):
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool} (Debian: apt-get install {package})")

    def sums(**variables):
        return {path.name: path.read_bytes() for path in packages(form, **variables).glob("*.sha256")}

    before = os.umask(0o022)
    try:
        first = sums()
        os.umask(0o077)
        assert sums() == first
    finally:
        os.umask(before)
    assert sums(SOURCE_DATE_EPOCH="1700000000") != first


def test_without_cmake_and_a_network_packaging_says_what_to_install(xtask, tmp_path):
    old = tmp_path / "bin/cmake"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho cmake version 3.23.9\n")
    old.chmod(0o755)
    network = {"LIBBFC_TESTS_CACHE": str(tmp_path / "cache"), "PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0"}
    said = xtask("package", "--format", "DEB", status=1, PATH=f"{old.parent}:{os.environ['PATH']}", **network)
    assert "CMake 3.24 or newer and Ninja are not on the PATH (Debian: apt-get install cmake ninja-build)" in said
    assert "libbfc_preload" not in said


@OF_FORMAT["TGZ"]
def test_the_tarball_is_the_installed_tree(root, packages, installed, tmp_path):
    (archive,) = packages("TGZ").glob("*.tar.gz")
    run("tar", "xf", archive, "-C", tmp_path)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    assert files(unpacked) == files(installed) - {"share/bfc/install-manifest.txt"}
    # Of the machine that it was built on it says nothing, and nothing that only a Rust compiler could use is in it.
    absent = {str(root), os.environ["HOME"] + "/", ".llvmbc", ".llvmcmd"}
    found = [(name, text) for name in files(unpacked) for text in absent if text.encode() in (unpacked / name).read_bytes()]
    assert not found
    assert "libbfc" in run(unpacked / "bin/bfc", "info")


@OF_FORMAT["DEB"]
@pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None, reason="there is no dpkg-shlibdeps (Debian: apt-get install dpkg-dev)")
def test_debian_packages(root, packages, installed, tmp_path, version, soname):
    runtime = soname.replace(".so.", "")
    found, fields = {}, {}
    for package in packages("DEB").glob("*.deb"):
        name = package.name.partition("_")[0]
        run("dpkg-deb", "-R", package, tmp_path / name)
        run("dpkg-deb", "-x", package, tmp_path / "all")
        found[name] = {file.removeprefix("usr/") for file in files(tmp_path / name) if not file.startswith("DEBIAN/")}
        fields[name] = dict(line.split(": ", 1) for line in run("dpkg-deb", "-f", package).splitlines() if line[0] != " ")
    libdir = fields[runtime]["Architecture"].replace("amd64", "lib/x86_64-linux-gnu")
    doc = [f"share/doc/{runtime}/{name}" for name in ("copyright", "changelog.Debian.gz", "changelog.gz")]
    assert found[runtime] == {f"{libdir}/{soname}", f"{libdir}/libbfc.so.{version}", *doc}
    assert f"libbfc ({version}-1)" in gzip.decompress((tmp_path / runtime / "usr" / doc[1]).read_bytes()).decode()
    assert found["libbfc-tools"] >= {"bin/bfc", f"{libdir}/libbfc_preload.so", "share/man/man1/bfc.1.gz"}
    assert "libc6 (>= " in fields[runtime]["Depends"]
    for name in ("libbfc-dev", "libbfc-tools"):
        assert f"{runtime} (= {version}" in fields[name]["Depends"]
        assert re.fullmatch(r".+ <[^@ ]+@[^@ ]+>", fields[name]["Maintainer"])
        assert re.fullmatch(r"https://\S+", fields[name]["Homepage"])
    # The licences of all that is linked, and both changelogs.
    for name in found:
        folder = tmp_path / name / "usr/share/doc" / name
        assert (folder / "copyright").read_text() == (root / "LICENSE-THIRD-PARTY").read_text()
        assert gzip.decompress((folder / "changelog.gz").read_bytes()) == (root / "CHANGELOG.md").read_bytes()
    # Each installed file is in one package, and there is nothing else but the licences, the changelogs and lintian's overrides.
    own = ("/copyright", "/changelog.Debian.gz", "/changelog.gz", "/lintian/overrides/libbfc-tools")
    names = sorted(name for package in found.values() for name in package if not name.endswith(own))
    expected = {name.replace("lib/", f"{libdir}/", 1) if name.startswith("lib/") else name for name in files(installed)}
    expected = {f"{name}.gz" if "/man1/" in name else name.replace("site-functions", "vendor-completions") for name in expected}
    # Each package has these in a place of its own.
    once = [f"share/doc/bfc/{name}" for name in ("LICENSE-APACHE", "LICENSE-MIT", "LICENSE-THIRD-PARTY", "CHANGELOG.md")]
    assert names == sorted(expected - {"share/bfc/install-manifest.txt", *once})
    # Nothing links with the interposer, and the loader finds what it needs without a path.
    assert not (tmp_path / "libbfc-tools/DEBIAN/shlibs").exists()
    assert "PATH" not in run("readelf", "--dynamic", tmp_path / f"all/usr/{libdir}/libbfc_preload.so")

    # A program that is packaged with this library runs with every later one that has the functions it calls.
    (package,) = (root / "target/packages/deb").glob(f"{runtime}_*.deb")
    run("dpkg-deb", "-R", package, tmp_path / "built")
    assert f"libbfc {soname.rpartition('.')[2]} {runtime} (>= {version}-1)" in (tmp_path / "built/DEBIAN/shlibs").read_text()
    listed = re.findall(r"^ (\w+)@Base [0-9.]+$", (tmp_path / "built/DEBIAN/symbols").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(re.findall(r"^[a-z]\w+", (root / "ffi-tests/symbols.txt").read_text(), re.MULTILINE))
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian/control").write_text("Source: app\n\nPackage: app\nArchitecture: any\n")
    (tmp_path / "app.c").write_text(SOURCE)
    flags = [f"-I{installed}/include", tmp_path / f"built/usr/{libdir}/{soname}"]
    run("cc", tmp_path / "app.c", *flags, "-o", tmp_path / "packaged")
    needs = run("dpkg-shlibdeps", f"-S{tmp_path / 'built'}", "-O", tmp_path / "packaged", cwd=tmp_path)
    assert re.search(rf"\b{runtime} \(>= {version}\)", needs), needs

    if shutil.which("lintian"):
        # The first upload to Debian is to close a wish for a package, and there is none.
        quiet = "--suppress-tags=initial-upload-closes-no-bugs"
        run("lintian", "--fail-on=error,warning", "--allow-root", quiet, *packages("DEB").glob("*.deb"))
    configure(tmp_path / "app", "find_package(bfc REQUIRED)", f"-Dbfc_DIR={tmp_path}/all/usr/{libdir}/cmake/bfc")
    build(tmp_path / "app", version)
