//! The commands on pages, run in a folder with the programs that they name, with the installed commands on the PATH, and on
//! the simulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::programs::{compiler, skipped};
use crate::files;
use crate::pages::Block;
use crate::pages::owned::Owned;
use crate::simcuda;
use crate::suites::context::{Context, Count};
use crate::tools;

/// What a reader puts something in the place of, and what it is here: `@` is the installation, `#` a fresh folder.
const STAND_FOR: [(&str, &str); 7] = [
    ("/path/to/", "@/lib/"),
    ("/usr/local/lib/", "@/lib/"),
    ("--prefix DIR", "--prefix #"),
    ("DIR", "@"),
    ("TRACE...", "tests/traces/mlp_tiny.trace.gz"),
    ("PROGRAM ARGS...", "./train"),
    (" ARGS...", " --epochs 3"),
];

/// A program that allocates device memory, in place of the reader's own: `train`, and what else pages call it.
const TRAIN: &str = "int cudaMalloc(void **, unsigned long); int cudaFree(void *);
int main(void) {
  void *memory[8];
  for (int i = 0; i < 8; i++) if (cudaMalloc(&memory[i], 1000000) != 0) return 1;
  for (int i = 0; i < 8; i++) if (cudaFree(memory[i]) != 0) return 1;
  return 0;
}
";
const PROGRAMS: [&str; 2] = ["train", "smoke-test"];

/// The same in Python.
const SCRIPT: &str = "import ctypes
runtime = ctypes.CDLL('libcudart.so.12')
memory = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(1000000)) == 0
assert runtime.cudaFree(memory) == 0
";
const SCRIPTS: [&str; 2] = ["train.py", "serve.py"];

/// Runs the blocks of all pages, each page's in a folder of its own, in order.
pub fn run(context: &mut Context, pages: &[Owned], prefix: &Path) -> Result<()> {
    let simulation = simcuda::build(&context.workspace)?;
    let has_commands = |page: &&Owned| page.blocks.iter().any(|block| block.language == "sh");
    for page in pages.iter().filter(has_commands) {
        let scene = Scene { prefix, simulation: &simulation, folder: page.folder().join("sandbox") };
        scene.set(context, pages, page)?;
        for block in page.blocks.iter().filter(|block| block.language == "sh") {
            let name = format!("{}: {}", page.page, block.first_line());
            let script = script(&block.text, prefix, &scene.folder.join("installed"));
            if let Some(why) = missing(&script) {
                skipped(context, page, block, &name, &why)?;
                continue;
            }
            let command = scene.command(context, page, block, &script)?;
            if context.program(&name, command, Count::One)?.success {
                page.ran(&block.name)?;
            }
        }
    }
    Ok(())
}

/// Where the commands of a page run.
struct Scene<'a> {
    prefix: &'a Path,
    simulation: &'a Path,
    folder: PathBuf,
}

impl Scene<'_> {
    /// Puts there what the commands name.
    fn set(&self, context: &Context, pages: &[Owned], page: &Owned) -> Result<()> {
        let folder = &self.folder;
        files::write(&folder.join("train.c"), TRAIN)?;
        let mut command = context.workspace.command(tools::c_compiler());
        command.arg(folder.join("train.c")).arg("-o").arg(folder.join(PROGRAMS[0]));
        command.arg(self.simulation.join(simcuda::runtime(simcuda::MAJORS[0])));
        context.workspace.run_well("page's train", command)?;
        for name in &PROGRAMS[1..] {
            files::copy(&folder.join(PROGRAMS[0]), &folder.join(name))?;
        }
        for name in SCRIPTS {
            files::write(&folder.join(name), SCRIPT)?;
        }
        // The page's own program, else that of the first page which has one.
        let has_program = |page: &&Owned| page.block("c-1").is_ok();
        let of = Some(page).filter(has_program).or_else(|| pages.iter().find(has_program));
        let source = of.context("no page has a program in C")?.file("c-1")?;
        files::copy(&source, &folder.join("app.c"))?;
        let command = compiler(context, &source, self.prefix, &folder.join("app"));
        context.workspace.run_well("page's app", command)?;
        files::link(&context.workspace.path("tests").display().to_string(), &folder.join("tests"))
    }

    fn command(&self, context: &Context, page: &Owned, block: &Block, script: &str) -> Result<Command> {
        let file = page.folder().join(format!("{}.run", block.name));
        files::write(&file, script)?;
        let mut command = context.plain(context.workspace.command("sh"));
        command.arg("-eux").arg(&file);
        // Chores run in the checkout, all else where nothing is in its way.
        let is_chore = block.text.starts_with("cargo ");
        command.current_dir(if is_chore { &context.workspace.root } else { &self.folder });
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = [self.prefix.join("bin")].into_iter().chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(folders)?);
        for name in ["LD_PRELOAD", "SIMCUDA_DEVICES"] {
            command.env_remove(name);
        }
        if !is_chore {
            command.env("LD_LIBRARY_PATH", self.simulation).env("HOME", &self.folder);
        }
        Ok(command)
    }
}

/// The lines of a block as somebody would type them: without remarks, and with real names in the place of others.
fn script(text: &str, prefix: &Path, fresh: &Path) -> String {
    let typed = |line: &str| {
        let command = line.strip_prefix("$ ").unwrap_or(line).split("   ").next().unwrap_or_default();
        let mut command = command.to_owned();
        for (word, stands_for) in STAND_FOR {
            command = command.replace(word, stands_for);
        }
        let quoted = |path: &Path| format!("'{}'", path.display());
        // Quoted in its middle, a word is one all the same.
        command.replace('@', &quoted(prefix)).replace('#', &quoted(fresh))
    };
    text.lines().map(|line| format!("{}\n", typed(line))).collect()
}

/// The tool that a script needs and the machine lacks.
fn missing(script: &str) -> Option<String> {
    let tools = ["pkg-config", "python3", "cmake"].into_iter();
    let mut missing = tools.filter(|tool| script.contains(tool) && files::program(tool).is_none());
    missing.next().map(|tool| format!("there is no {tool}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_becomes_what_somebody_types() {
        let typed = |text: &str| script(text, Path::new("/p"), Path::new("/n"));
        assert_eq!(typed("bfc info        which library\n"), "bfc info\n");
        assert_eq!(typed("$ bfc run -- PROGRAM ARGS...   runs it\n"), "bfc run -- ./train\n");
        assert_eq!(typed("cargo xtask install --prefix DIR\n"), "cargo xtask install --prefix '/n'\n");
        assert_eq!(typed("cc -Wl,-rpath,DIR/lib\n"), "cc -Wl,-rpath,'/p'/lib\n");
        assert_eq!(
            typed("LD_PRELOAD=/path/to/x.so ./a ARGS...\n"),
            "LD_PRELOAD='/p'/lib/x.so ./a --epochs 3\n"
        );
    }

    #[test]
    fn a_tool_that_is_not_there_is_named() {
        assert_eq!(missing("sh -c true\n"), None);
    }
}
