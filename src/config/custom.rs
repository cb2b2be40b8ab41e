//! `[runners.custom]`: the driver's programs, their arguments and times (build §9.1).

use std::time::Duration;

use super::table::Table;
use crate::model::{Custom, Program};

/// Seconds, where the entry says nothing, or nothing above zero.
const EXEC: u64 = 3600;
const GRACEFUL: u64 = 600;
const FORCE: u64 = 10;

/// The error is why the entry takes no jobs.
pub(super) fn read(entry: &Table<'_>) -> Result<Custom, String> {
    let Some(table) = entry.table("custom") else {
        return Err("its executor is \"custom\", and there is no [runners.custom]".to_owned());
    };
    let seconds = |key: &str, default: u64| {
        let n = table.number(key).and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        Duration::from_secs(n.unwrap_or(default))
    };
    let program = |name: &str| {
        let program = Program {
            exec: table.string(&format!("{name}_exec")).unwrap_or_default(),
            args: table.strings(&format!("{name}_args")).unwrap_or_default(),
            timeout: if name == "run" { Duration::ZERO } else { seconds(&format!("{name}_exec_timeout"), EXEC) },
        };
        Some(program).filter(|p| !p.exec.is_empty())
    };
    let custom = Custom {
        config: program("config"),
        prepare: program("prepare"),
        run: program("run").unwrap_or_default(),
        cleanup: program("cleanup"),
        graceful_kill_timeout: seconds("graceful_kill_timeout", GRACEFUL),
        force_kill_timeout: seconds("force_kill_timeout", FORCE),
        ..Custom::default()
    };
    table.leftovers(&[]);
    match custom.run.exec.is_empty() {
        true => Err("its [runners.custom] has no run_exec".to_owned()),
        false => Ok(custom),
    }
}
