//! The command line: arguments in, exit code out. One function per command below `cli/`.
