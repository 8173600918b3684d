//! What CMake's `find_package(bfc ...)` accepts and refuses.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::context::Context;
use crate::files;
use crate::tools::CMake;
use crate::workspace::{Ended, Workspace};

/// A project that does nothing but look for the package, with the words it is given.
const PROJECT: &str = "\
cmake_minimum_required(VERSION 3.20)
project(find LANGUAGES C)
find_package(bfc ${WORDS} REQUIRED)
if(NOT TARGET bfc::bfc OR NOT TARGET bfc::static)
  message(FATAL_ERROR \"a target is missing\")
endif()
if(NOT EXISTS \"${bfc_PRELOAD_LIBRARY}\")
  message(FATAL_ERROR \"bfc_PRELOAD_LIBRARY: ${bfc_PRELOAD_LIBRARY}\")
endif()
# As a function's scope would have it: the targets are there, the variable is not.
set(first \"${bfc_PRELOAD_LIBRARY}\")
unset(bfc_PRELOAD_LIBRARY)
find_package(bfc ${WORDS} REQUIRED)
if(NOT bfc_PRELOAD_LIBRARY STREQUAL first)
  message(FATAL_ERROR \"bfc_PRELOAD_LIBRARY then: ${bfc_PRELOAD_LIBRARY}\")
endif()
message(STATUS \"interposer ${bfc_PRELOAD_LIBRARY}\")
message(STATUS \"found bfc ${bfc_VERSION} in ${bfc_DIR}\")
";

/// Wishes that fit the installed version, and wishes that do not.
pub fn run(context: &mut Context, cmake: &CMake, prefix: &Path) -> Result<()> {
    let source = context.workspace.target.join("xtask/find-package");
    files::write(&source.join("CMakeLists.txt"), PROJECT)?;
    let version = context.workspace.version.clone();
    let [accepted, refused] = wishes(&version)?;
    for (wishes, fit) in [(accepted, true), (refused, false)] {
        for words in wishes {
            let verb = if fit { "accepts" } else { "refuses" };
            let call = format!("find_package(bfc {})", words.replace(';', " "));
            context.check(&format!("{} {verb}", call.replace(" )", ")")), |workspace| {
                let ended = find(workspace, cmake, &source, prefix, &words)?;
                judge(&ended.text, ended.success, fit, &version, prefix)
            });
        }
    }
    Ok(())
}

/// What fits a version, and what does not: a newer patch, minor or major version, a component that is
/// none.
fn wishes(version: &str) -> Result<[Vec<String>; 2]> {
    let numbers = version.split('.').map(str::parse::<u32>);
    let numbers = numbers.collect::<Result<Vec<_>, _>>();
    let Ok([major, minor, patch]) = numbers.as_deref() else {
        bail!("the version {version} is not major.minor.patch");
    };
    let (next_minor, next_patch) = (minor + 1, patch + 1);
    let accepted = vec![
        String::new(),
        format!("{major}"),
        format!("{major}.{minor}"),
        format!("{version};EXACT"),
        format!("{version}...{major}.{next_minor}"),
        "COMPONENTS;static".to_owned(),
    ];
    let mut refused = vec![
        format!("{major}.{minor}.{next_patch}"),
        format!("{major}.{next_minor}"),
        format!("{}.0", major + 1),
        format!("{major}.{minor};EXACT;COMPONENTS;nothing"),
        format!("{major}.{next_minor}...{major}.99"),
    ];
    if *major == 0 && *minor > 0 {
        refused.push(format!("0.{}", minor - 1));
    }
    Ok([accepted, refused])
}

fn find(workspace: &Workspace, cmake: &CMake, source: &Path, prefix: &Path, words: &str) -> Result<Ended> {
    let folder = source.join("build");
    // Anew: CMake's cache would remember the last answer.
    files::remove_all(&folder)?;
    let mut command = cmake.command(workspace, "cmake");
    command.arg("-S").arg(source).arg("-B").arg(&folder);
    command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    command.arg(format!("-DWORDS={words}"));
    workspace.run(&format!("find_package {words}"), command)
}

/// A refusal counts only if it is of this package: one because nothing was found proves nothing.
fn judge(said: &str, success: bool, fit: bool, version: &str, prefix: &Path) -> Result<()> {
    let place = prefix.join("lib/cmake/bfc");
    match (success, fit) {
        (true, true) => {
            let interposer = prefix.join("lib/libbfc_preload.so");
            let expected = [
                format!("found bfc {version} in {}", place.display()),
                format!("interposer {}", interposer.display()),
            ];
            let missing = expected.iter().find(|words| !said.contains(*words));
            missing.map_or(Ok(()), |words| bail!("not {words}:\n{said}"))
        }
        (false, false) => {
            let considered = said.contains(&format!("bfcConfig.cmake, version: {version}"));
            let component = said.contains("libbfc has no component");
            (considered || component)
                .then_some(())
                .with_context(|| format!("refused for another reason:\n{said}"))
        }
        (true, false) => bail!("it was accepted:\n{said}"),
        (false, true) => bail!("it was refused:\n{said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_follow_the_version() {
        let [accepted, refused] = wishes("0.1.0").expect("a version");
        assert!(accepted.contains(&"0.1".to_owned()));
        assert!(refused.contains(&"0.2".to_owned()) && refused.contains(&"0.0".to_owned()));
        let [_, refused] = wishes("1.4.2").expect("a version");
        assert!(refused.contains(&"1.4.3".to_owned()) && refused.contains(&"2.0".to_owned()));
        assert!(!refused.contains(&"0.3".to_owned()));
        assert!(wishes("1.4").is_err());
    }

    #[test]
    fn only_the_right_answer_for_the_right_reason_passes() {
        let judge = |said: &str, success, fit| judge(said, success, fit, "0.1.0", Path::new("/p"));
        let found = "-- interposer /p/lib/libbfc_preload.so\n-- found bfc 0.1.0 in /p/lib/cmake/bfc\n";
        assert!(judge(found, true, true).is_ok());
        assert!(judge(&found.replace("/p/lib/cmake", "/usr/lib/cmake"), true, true).is_err());
        assert!(judge(&found.replace("/p/lib/libbfc_p", "/usr/lib/libbfc_p"), true, true).is_err());
        assert!(judge(found, true, false).is_err());
        let refused = "  /p/lib/cmake/bfc/bfcConfig.cmake, version: 0.1.0\n";
        assert!(judge(refused, false, false).is_ok());
        assert!(judge(refused, false, true).is_err());
        assert!(judge("no C compiler", false, false).is_err());
    }
}
