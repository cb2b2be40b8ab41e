//! Arguments in, exit code out.

fn main() -> std::process::ExitCode {
    runner::cli::main()
}
