//! Our own log: one line an event, on stderr, in the format that the configuration names (protocol
//! §6.14). Never holds back a line, never colours what is no terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use log::kv::{self, Key, Value, VisitSource};
use log::{Level, LevelFilter, Record};

use crate::clock::utc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Runner,
    Text,
    Json,
}

impl LogFormat {
    pub fn from_name(name: &str) -> Option<LogFormat> {
        match name.to_ascii_lowercase().as_str() {
            "runner" => Some(LogFormat::Runner),
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            LogFormat::Runner => "runner",
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// The format in force; changed by a reload.
static FORMAT: AtomicU8 = AtomicU8::new(LogFormat::Runner as u8);
/// What the command line asks for, which beats the file.
static ASKED: OnceLock<(Option<LevelFilter>, Option<LogFormat>)> = OnceLock::new();

/// Start logging. The arguments are those of the command line; they stay in force over [`apply`].
pub fn init(level: Option<LevelFilter>, format: Option<LogFormat>) {
    let _ = ASKED.set((level, format));
    let colour = io::stderr().is_terminal();
    // Other crates log what concerns only their authors; `log::set_max_level` does the rest.
    let built = env_logger::Builder::new()
        .filter_level(LevelFilter::Warn)
        .filter_module(env!("CARGO_CRATE_NAME"), LevelFilter::Trace)
        .format(move |to, record| {
            let mut line = Vec::with_capacity(160);
            write(&mut line, in_force(), colour, &utc(SystemTime::now()), record);
            to.write_all(&line)
        })
        .try_init();
    if built.is_ok() {
        std::panic::set_hook(Box::new(|info| log::error!("internal error: {}", info.to_string().replace('\n', " "))));
    }
    apply(LevelFilter::Info, LogFormat::Runner);
}

/// The file's settings, at the start and at each reload.
pub fn apply(level: LevelFilter, format: LogFormat) {
    let (asked_level, asked_format) = ASKED.get().copied().unwrap_or_default();
    FORMAT.store(asked_format.unwrap_or(format) as u8, Ordering::Relaxed);
    log::set_max_level(asked_level.unwrap_or(level));
}

/// In the words of `log_level`.
pub fn level_name(level: LevelFilter) -> &'static str {
    match level {
        LevelFilter::Off => "off",
        LevelFilter::Error => "error",
        LevelFilter::Warn => "warning",
        LevelFilter::Info => "info",
        LevelFilter::Debug => "debug",
        LevelFilter::Trace => "trace",
    }
}

fn in_force() -> LogFormat {
    match FORMAT.load(Ordering::Relaxed) {
        n if n == LogFormat::Text as u8 => LogFormat::Text,
        n if n == LogFormat::Json as u8 => LogFormat::Json,
        _ => LogFormat::Runner,
    }
}

/// One event, one line: line breaks in the message are shown, not made.
fn write(line: &mut Vec<u8>, format: LogFormat, colour: bool, time: &str, record: &Record<'_>) {
    let message = record.args().to_string();
    let fields = Fields::of(record);
    match format {
        LogFormat::Runner => runner(line, colour, record.level(), &message, &fields),
        LogFormat::Text => {
            let level = level_name(record.level().to_level_filter());
            let _ = write!(line, "time=\"{time}\" level={level} msg={}", quoted(&message));
            for (key, value) in &fields.0 {
                let _ = write!(line, " {key}={}", if plain(value) { value.clone() } else { quoted(value) });
            }
        }
        LogFormat::Json => {
            let level = level_name(record.level().to_level_filter());
            let _ = write!(line, "{{\"level\":\"{level}\",\"msg\":{},\"time\":\"{time}\"", quoted(&message));
            for (key, value) in &fields.0 {
                let _ = write!(line, ",{}:{}", quoted(key), quoted(value));
            }
            line.push(b'}');
        }
    }
    line.push(b'\n');
}

fn runner(line: &mut Vec<u8>, colour: bool, level: Level, message: &str, fields: &Fields) {
    let (prefix, paint) = match level {
        Level::Error => ("ERROR: ", "\x1b[31;1m"),
        Level::Warn => ("WARNING: ", "\x1b[0;33m"),
        Level::Info => ("", ""),
        Level::Debug | Level::Trace => ("", "\x1b[37;1m"),
    };
    let (on, off) = if colour && !paint.is_empty() { (paint, "\x1b[0;m") } else { ("", "") };
    let message = message.replace('\r', "\\r").replace('\n', "\\n");
    let width = if fields.0.is_empty() { 0 } else { 50usize.saturating_sub(prefix.len()) };
    let _ = write!(line, "{on}{prefix}{message:<width$}{off}");
    for (key, value) in &fields.0 {
        let _ = write!(line, "  {on}{key}{off}={}", value.replace('\n', "\\n"));
    }
}

fn plain(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/@^+:".contains(&b))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The fields of an event (`log::info!(job = id; "…")`), sorted by name.
struct Fields(Vec<(String, String)>);

impl Fields {
    fn of(record: &Record<'_>) -> Fields {
        let mut fields = Fields(Vec::new());
        let _ = record.key_values().visit(&mut fields);
        fields.0.sort();
        fields
    }
}

impl<'k> VisitSource<'k> for Fields {
    fn visit_pair(&mut self, key: Key<'k>, value: Value<'k>) -> Result<(), kv::Error> {
        self.0.push((key.to_string(), value.to_string()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(format: LogFormat, colour: bool, message: &str, fields: &[(&str, &str)]) -> String {
        let mut out = Vec::new();
        let args = format_args!("{message}");
        let record = Record::builder().level(Level::Warn).args(args).key_values(&fields).build();
        write(&mut out, format, colour, "2026-01-02T03:04:05.678Z", &record);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_format_gives_one_line() {
        let fields = [("status", "500 Internal"), ("job", "7")];
        assert_eq!(
            line(LogFormat::Text, false, "say \"no\"\nagain", &fields),
            "time=\"2026-01-02T03:04:05.678Z\" level=warning msg=\"say \\\"no\\\"\\nagain\" job=7 status=\"500 Internal\"\n"
        );
        assert_eq!(
            line(LogFormat::Json, true, "x", &fields),
            "{\"level\":\"warning\",\"msg\":\"x\",\"time\":\"2026-01-02T03:04:05.678Z\",\"job\":\"7\",\"status\":\"500 Internal\"}\n"
        );
        assert_eq!(line(LogFormat::Runner, false, "a\nb", &[]), "WARNING: a\\nb\n");
        let padded = format!("WARNING: x{}  job=7\n", " ".repeat(40));
        assert_eq!(line(LogFormat::Runner, false, "x", &[("job", "7")]), padded);
    }

    #[test]
    fn only_a_terminal_gets_colours() {
        assert_eq!(line(LogFormat::Runner, true, "x", &[]), "\x1b[0;33mWARNING: x\x1b[0;m\n");
    }
}
