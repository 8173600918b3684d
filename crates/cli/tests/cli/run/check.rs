//! `bfc run --check`: what it says of a program and the exit code it says it with.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{compiled, executable, folder, interposer, run, unwrapped};
use crate::common::{bfc, run_to};

const SERVED: &str = "looked-up dlsym cuMemAlloc_v2;called cuMemAlloc_v2;served 512";

/// The words of `bfc run --check`, which must end with `code`.
fn said(code: i32, sees: &str, driver: &str, words: &[&str]) -> Option<String> {
    let mut command = run(&["--check", "--"])?;
    command.args(words).env("FAKE_SEES", sees).env("FAKE_DRIVER", driver);
    Some(unwrapped(&run_to(code, &mut command).1))
}

#[test]
fn the_exit_code_is_the_programs_where_interposition_took_hold() {
    for code in [0, 5] {
        let exit = format!("exit {code}");
        let Some(said) = said(code, SERVED, "mapped", &["sh", "-c", &exit]) else { return };
        assert!(said.starts_with("bfc: check: interposition took hold"), "{said}");
        assert!(said.contains(&format!("(sh ended with exit code {code})")), "{said}");
        assert!(said.ends_with("): served from the pool (reached by dlsym)"), "{said}");
    }
    let said = said(139, SERVED, "mapped", &["sh", "-c", "kill -SEGV $$"]).expect("there was a compiler");
    assert!(said.contains("(sh was ended by signal 11 (SIGSEGV))"), "{said}");
}

#[test]
fn otherwise_it_is_3_and_the_reason_is_told() {
    for (sees, driver, words) in [
        ("", "absent", "libcuda.so.1, was not in it"),
        ("", "mapped", "RTLD_DEEPBIND"),
        ("looked-up dlsym cuMemAlloc_v2", "mapped", "never allocated"),
        ("called cuMemAllocManaged", "mapped", "it called cuMemAllocManaged, and got nothing"),
        ("called cuMemAlloc_v2;passed full", "mapped", "the pool could not grow"),
    ] {
        // The program's own code is told, not lost. (No shell: some end by _exit, and none of their words is the last.)
        let Some(said) = said(3, sees, driver, &["cat", "/nonexistent"]) else { return };
        assert!(said.contains("bfc: check: interposition did not take hold"), "{said}");
        assert!(said.contains("(cat ended with exit code 1)") && said.contains(words), "{sees}: {said}");
    }
    let ended = said(3, "", "mapped", &["sh", "-c", "kill -KILL $$"]).expect("there was a compiler");
    assert!(ended.contains("signal 9 (SIGKILL) ended it before it was seen with the driver"), "{ended}");
    let gone = said(3, "", "mapped", &["env", "-i", "true"]).expect("there was a compiler");
    assert!(gone.contains("env (process ") && gone.contains("it exited without reporting"), "{gone}");
}

#[test]
fn standard_output_is_the_programs() {
    let Some(mut command) = run(&["--check", "--", "echo", "a", "b"]) else { return };
    assert_eq!(run_to(3, &mut command).0, "a b\n");
}

#[test]
fn each_process_is_told_of() {
    // Only the last of the three programs is served.
    let script = "/bin/ls / >/dev/null; FAKE_SEES='served 512' FAKE_DRIVER=mapped exec /bin/cat /dev/null";
    let Some(said) = said(0, "", "absent", &["sh", "-c", script]) else { return };
    assert!(said.contains("cat (process ") && said.contains("): served from the pool"), "{said}");
    assert!(said.contains("ls (process ") && said.ends_with("the driver was never in it"), "{said}");
    assert!(!said.contains("dash") && !said.contains("bash"), "the shell became cat: {said}");
}

#[test]
fn a_static_program_is_known_as_one() {
    let folder = folder("static");
    let program = folder.join("program");
    if !compiled(&program, "int main(void) { return 6; }", &["-static"]) {
        eprintln!("skipped: no static C library");
        return;
    }
    let path = program.display().to_string();
    let Some(plain) = said(3, "", "absent", &[&path]) else { return };
    assert!(plain.contains(&format!("{path} is statically linked")), "{plain}");
    assert!(plain.contains("(program ended with exit code 6)"), "{plain}");
    // As an interpreter too.
    let script = folder.join("script");
    executable(&script, &format!("#!{path}\n"));
    let script = said(3, "", "absent", &[&script.display().to_string()]).expect("there was a compiler");
    assert!(script.contains(&format!("{path}, the script's interpreter, is statically linked")), "{script}");
    // And one whose children are reached all the same.
    let source = "#include <stdlib.h>\nint main(void) { return system(\"exec /bin/cat /dev/null\"); }";
    assert!(compiled(&program, source, &["-static"]));
    let parent = said(0, SERVED, "mapped", &[&path]).expect("there was a compiler");
    let none = "the interposer was not loaded into it";
    assert!(parent.contains(none) && parent.contains("): served from the pool"), "{parent}");
}

#[test]
fn a_script_is_followed_to_its_interpreter() {
    let script = folder("interpreted").join("script");
    executable(&script, "#!/bin/sh -e\nexit 2\n");
    let path = script.display().to_string();
    let Some(said) = said(2, SERVED, "mapped", &[&path]) else { return };
    assert!(said.contains("script ended with exit code 2"), "{said}");
}

#[test]
fn an_interposer_that_cannot_be_loaded_is_nothing_in_the_file() {
    let folder = folder("broken");
    for name in ["libbfc_preload.so", "libbfc.so.0"] {
        fs::write(folder.join(name), "no library\n").expect("writable");
    }
    let mut command = bfc();
    command.args(["run", "--check", "--preload"]).arg(&folder).args(["--", "true"]);
    let (_, error) = run_to(3, &mut command);
    // The loader's own words, and then ours, which lead to them.
    assert!(error.contains("cannot be preloaded"), "{error}");
    assert!(unwrapped(&error).contains("shows why. Does a message of the loader above say that"), "{error}");
}

#[test]
fn signals_come_to_the_program() {
    let script = "trap 'exit 40' TERM; trap 'exit 41' USR1; trap 'exit 42' USR2; trap 'exit 43' QUIT; echo ready; \
                  for i in $(seq 600); do sleep 0.05; done";
    let signals = [("TERM", 40), ("USR1", 41), ("USR2", 42), ("QUIT", 43), ("HUP", 129), ("INT", 130)];
    for (signal, code) in signals {
        let Some(mut command) = run(&["--check", "--", "sh", "-c", script]) else { return };
        heeding_signals(&mut command);
        command.env("FAKE_SEES", SERVED).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the command starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says so");
        assert_eq!(line, "ready\n");
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
        assert!(sent.expect("kill is there").success());
        assert_eq!(soon(&mut child).and_then(|status| status.code()), Some(code), "{signal}");
    }
}

/// A program that nohup or a script's `&` has started, as these tests may be, ignores some, and its children do.
fn heeding_signals(command: &mut Command) {
    let heed = || {
        let signals =
            [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
        for signal in signals {
            // SAFETY: a signal that may be set, and no function of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: signal() may be called between fork and exec.
    unsafe { command.pre_exec(heed) };
}

/// The child's end; None, and its end by force, where it does not come.
fn soon(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        match child.try_wait().expect("it is a child") {
            None => thread::sleep(Duration::from_millis(10)),
            ended => return ended,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

#[test]
fn children_that_outlive_the_program_are_not_waited_for() {
    // The child keeps none of the pipes, so that only a wait for the child itself could delay the end.
    let script = "sleep 60 </dev/null >/dev/null 2>&1 & echo $!";
    let Some(mut command) = run(&["--check", "--", "sh", "-c", script]) else { return };
    command.env("FAKE_SEES", SERVED).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the command starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says so");
    let ended = soon(&mut child);
    let killed = Command::new("kill").arg(line.trim()).status().expect("kill is there");
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    assert!(killed.success(), "the child had ended before the program");
}

/// What is typed goes to all processes of the terminal: passed on it would come twice.
#[test]
fn a_key_at_the_terminal_comes_once() {
    let script = "n=0; trap 'n=$((n+1)); echo got' INT; echo ready; sleep 1; sleep 1; exit $((40+n))";
    let Some(mut command) = run(&["--check", "--", "sh", "-c", script]) else { return };
    let (mut keyboard, mut terminal) = (0, 0);
    let [no_name, no_mode, no_size] = [std::ptr::null_mut(); 3];
    // SAFETY: two numbers are written; nothing else is asked for.
    let opened = unsafe {
        libc::openpty(&raw mut keyboard, &raw mut terminal, no_name, no_mode.cast(), no_size.cast())
    };
    assert_eq!(opened, 0, "there are no terminals to be had: {}", std::io::Error::last_os_error());
    // SAFETY: a descriptor that was opened above, and has no other owner.
    let mut keyboard = unsafe { File::from_raw_fd(keyboard) };
    // SAFETY: as above.
    let terminal = unsafe { File::from_raw_fd(terminal) };
    let own = || {
        // SAFETY: takes nothing.
        unsafe { libc::setsid() };
        // SAFETY: asks for the terminal on standard input to be this session's.
        unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
        Ok(())
    };
    // SAFETY: two calls that may be made between fork and exec.
    unsafe { command.pre_exec(own) };
    heeding_signals(&mut command);
    command.stdin(terminal).stdout(Stdio::piped()).stderr(Stdio::null()).env("FAKE_SEES", SERVED);
    let mut child = command.spawn().expect("the command starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it says so");
    assert_eq!(line, "ready\n");
    keyboard.write_all(b"\x03").expect("a key is typed");
    assert_eq!(soon(&mut child).and_then(|status| status.code()), Some(41));
}

#[test]
fn what_the_caller_ignores_the_program_ignores() {
    let Some(run) = run(&["--check", "--", "sh", "-c", "kill -HUP $$ $PPID; exit 5"]) else { return };
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(run.get_program()).args(run.get_args());
    let variables = run.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.envs(variables).env("FAKE_SEES", SERVED);
    run_to(5, &mut command);
}

#[test]
fn nothing_stays_in_the_folder_for_temporary_files() {
    let temporary = folder("temporary");
    let Some(mut command) = run(&["--check", "--", "true"]) else { return };
    run_to(3, command.env("TMPDIR", &temporary));
    assert_eq!(fs::read_dir(&temporary).expect("it is there").count(), 0);
    let mut command = run(&["--check", "--", "true"]).expect("there was a compiler before");
    let (_, error) = run_to(125, command.env("TMPDIR", "/nonexistent"));
    assert!(error.contains("/nonexistent/bfc-check-"), "{error}");
}

/// Needs root, to have a program of root's that is setuid, and to be another user.
#[test]
fn a_setuid_program_is_known_as_one() {
    const NOBODY: u32 = 65534;
    let Some(interposer) = interposer() else { return };
    let shared = std::env::temp_dir().join(format!("bfc-setuid-{}", std::process::id()));
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its own file");
    };
    fs::create_dir_all(&shared).expect("a folder for temporary files");
    open(&shared, 0o755);
    let copy = |from: &Path, name: &str| fs::copy(from, shared.join(name)).expect("both are there");
    for name in ["libbfc_preload.so", "libbfc.so.0"] {
        copy(&interposer.join(name), name);
    }
    copy(Path::new(env!("CARGO_BIN_EXE_bfc")), "bfc");
    copy(Path::new("/usr/bin/id"), "id");
    open(&shared.join("id"), 0o4755);
    let as_nobody = |program: &str| {
        let mut command = Command::new(shared.join(program));
        command.uid(NOBODY).gid(NOBODY).current_dir("/").env("TMPDIR", "/tmp");
        command
    };
    let effective = as_nobody("id").arg("-u").output();
    if effective.is_ok_and(|output| output.stdout == b"0\n") {
        let check = ["run", "--check", "--"];
        let (_, error) = run_to(3, as_nobody("bfc").args(check).arg(shared.join("id")));
        let words = format!("{} is setuid: the loader ignores LD_PRELOAD", shared.join("id").display());
        assert!(unwrapped(&error).contains(&words), "{error}");
        // Without the bit it is not, and another user's process can write what it sees.
        open(&shared.join("id"), 0o755);
        run_to(0, as_nobody("bfc").args(check).arg(shared.join("id")).env("FAKE_SEES", SERVED));
        // A program that becomes another user's: its child has to be able to write as well.
        let source = "#include <unistd.h>\nint main(void) {\n  return setgid(65534) || setuid(65534) ||\n         \
                      execl(\"/bin/cat\", \"cat\", \"/dev/null\", (char *)0);\n}\n";
        assert!(compiled(&shared.join("drop"), source, &[]));
        let mut command = Command::new(shared.join("bfc"));
        command.args(check).arg(shared.join("drop")).env("FAKE_SEES", SERVED);
        run_to(0, &mut command);
    } else {
        eprintln!("skipped: setuid programs cannot be tried here (not root, or a file system without them)");
    }
    fs::remove_dir_all(&shared).expect("its own folder");
}
