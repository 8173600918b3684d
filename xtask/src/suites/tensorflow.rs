//! The suite `tensorflow`: libbfc in lock-step with TensorFlow's own allocator.

use anyhow::{Result, bail};

use super::context::{Context, Count};
use crate::tensorflow::{self, Program, TensorFlow};
use crate::workspace::Ended;

/// Fewer would leave rare programs out.
const LEAST_STEPS: u64 = 1_000_000;

/// Millions of equal steps; and faults that are put in, which have to be found.
pub fn run(context: &mut Context) -> Result<()> {
    let Some(tensorflow) = context.or_skip("all of it", TensorFlow::find(&context.workspace))? else {
        return Ok(());
    };
    let prefix = context.prefix()?;
    let mut lockstep = None;
    context.check("compile lockstep", |workspace| {
        let program = tensorflow::compile(workspace, &prefix, Program::Lockstep, Some(&tensorflow))?;
        lockstep = Some(program);
        Ok(())
    });
    let Some(lockstep) = lockstep else {
        return Ok(());
    };

    let command = tensorflow::command(&context.workspace, &lockstep);
    let said = context.program("lockstep", command, Count::One)?;
    context.gate("enough steps were compared", &too_few(&said.text));
    for fault in ["size", "split", "frontier"] {
        context.check(&format!("lockstep finds a fault: {fault}"), |workspace| {
            let mut command = tensorflow::command(workspace, &lockstep);
            command.args(["--mutate", fault]);
            let ended = workspace.run(&format!("lockstep mutate {fault}"), command)?;
            found_it(&ended)
        });
    }
    Ok(())
}

/// Reads `libbfc 0.1.0 against TensorFlow: 5000123 steps compared in 4.1 s`.
fn too_few(said: &str) -> Vec<String> {
    let count = said
        .split_once(" steps compared in")
        .and_then(|(before, _)| before.rsplit(' ').next())
        .and_then(|count| count.parse::<u64>().ok());
    match count {
        Some(LEAST_STEPS..) => Vec::new(),
        Some(count) => vec![format!("{count} are fewer than {LEAST_STEPS}")],
        None => vec!["lockstep does not say how many steps it has compared".to_owned()],
    }
}

/// The fault has to be the reason, and not a crash or a wrong option.
fn found_it(ended: &Ended) -> Result<()> {
    let says = |words: &str| ended.text.contains(words);
    if ended.success || !says("MISMATCH") || !says("the smallest program that differs") {
        bail!("the fault was not found: {}", ended.complaint());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(success: bool, text: &str) -> Ended {
        Ended { success, status: "exit status: 1".to_owned(), text: text.to_owned(), log: "log".into() }
    }

    #[test]
    fn enough_steps_pass_and_few_or_none_fail() {
        let said = |count: &str| {
            format!("total 1 2\nlibbfc 0.1.0 against TensorFlow: {count} steps compared in 4.1 s")
        };
        assert!(too_few(&said("1000000")).is_empty());
        assert_eq!(too_few(&said("999999")).len(), 1);
        assert_eq!(too_few(&said("no")).len(), 1);
        assert_eq!(too_few("").len(), 1);
    }

    #[test]
    fn a_fault_that_goes_unnoticed_fails() {
        let report = "MISMATCH in program 3\nthe smallest program that differs (1 step):\n";
        assert!(found_it(&ended(false, report)).is_ok());
        assert!(found_it(&ended(true, report)).is_err());
        assert!(found_it(&ended(false, "lockstep: CRASH in program 3")).is_err());
        assert!(found_it(&ended(false, "lockstep: unknown mutation")).is_err());
    }
}
