//! Points at which tests stop the real binary (release builds hold none of it), and below it our own log.

pub mod logging;

/// In debug builds: when `RUNNER_PAUSE` is `NAME=FILE` and names this point, write the process id
/// to FILE and stay until it is removed. Tests kill the process meanwhile (kill-points).
#[cfg(debug_assertions)]
#[expect(clippy::disallowed_methods, reason = "the test hook of debug builds")]
pub fn point(name: &str) {
    let Ok(spec) = std::env::var("RUNNER_PAUSE") else { return };
    let Some((want, file)) = spec.split_once('=') else { return };
    if want != name || std::path::Path::new(&format!("{file}.was")).exists() {
        return;
    }
    std::fs::write(format!("{file}.was"), "").expect("RUNNER_PAUSE names a writable file");
    std::fs::write(format!("{file}.tmp"), std::process::id().to_string()).expect("RUNNER_PAUSE names a writable file");
    std::fs::rename(format!("{file}.tmp"), file).expect("RUNNER_PAUSE names a writable file");
    for _ in 0..6000 {
        if !std::path::Path::new(file).exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("RUNNER_PAUSE: nobody came to {name}");
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_name: &str) {}
