//! A TOML table with a memory of what was asked for: typed look-ups that collect every complaint with
//! file, line and key, and at the end the keys that nobody asked for. Knows no key by name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::values;

/// What is to be said about one file, in the order of its lines.
pub(super) struct Report<'a> {
    file: String,
    text: &'a str,
    errors: RefCell<Vec<(usize, String)>>,
    warnings: RefCell<Vec<(usize, String)>>,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: String, text: &'a str) -> Report<'a> {
        Report { file, text, errors: RefCell::default(), warnings: RefCell::default() }
    }

    pub(super) fn error(&self, at: usize, what: &str) {
        self.errors.borrow_mut().push((at, format!("{}:{}: {what}", self.file, self.line(at))));
    }

    pub(super) fn warn(&self, at: usize, what: &str) {
        self.warnings.borrow_mut().push((at, format!("{}:{}: {what}", self.file, self.line(at))));
    }

    pub(super) fn warn_of_file(&self, what: &str) {
        self.warnings.borrow_mut().push((0, format!("{}: {what}", self.file)));
    }

    pub(super) fn errors(&self) -> Vec<String> {
        in_order(self.errors.take())
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        in_order(self.warnings.take())
    }

    fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        before.iter().filter(|&&b| b == b'\n').count() + 1
    }
}

fn in_order(mut said: Vec<(usize, String)>) -> Vec<String> {
    said.sort_by_key(|(at, _)| *at);
    said.into_iter().map(|(_, line)| line).collect()
}

pub(super) struct Table<'a> {
    report: &'a Report<'a>,
    /// As in the file; empty for the file's own keys.
    name: String,
    /// Where the table stands.
    pub(super) at: usize,
    /// By key in lower case: gitlab-runner matches without regard to case (build §10.1).
    rows: BTreeMap<String, Row<'a>>,
}

struct Row<'a> {
    key: &'a str,
    at: usize,
    value: &'a Spanned<DeValue<'a>>,
    asked: std::cell::Cell<bool>,
}

impl<'a> Table<'a> {
    pub(super) fn new(report: &'a Report<'a>, name: &str, at: usize, table: &'a DeTable<'a>) -> Table<'a> {
        let mut rows = BTreeMap::new();
        for (key, value) in table {
            let row = Row { key: key.get_ref(), at: key.span().start, value, asked: std::cell::Cell::new(false) };
            if rows.insert(key.get_ref().to_lowercase(), row).is_some() {
                report.error(key.span().start, &format!("{}: this key is there twice", full(name, key.get_ref())));
            }
        }
        Table { report, name: name.to_owned(), at, rows }
    }

    fn row(&self, key: &str) -> Option<&Row<'a>> {
        let row = self.rows.get(key)?;
        row.asked.set(true);
        Some(row)
    }

    /// Whether the key is there; does not count as a question.
    pub(super) fn has(&self, key: &str) -> bool {
        self.rows.contains_key(key)
    }

    pub(super) fn at_key(&self, key: &str) -> usize {
        self.rows.get(key).map_or(self.at, |row| row.at)
    }

    /// A value of this key is wrong in a way that its type does not tell.
    pub(super) fn wrong(&self, key: &str, what: &str) {
        self.report.error(self.at_key(key), &format!("{}: {what}", full(&self.name, key)));
    }

    pub(super) fn warn(&self, key: &str, what: &str) {
        self.report.warn(self.at_key(key), &format!("{}: {what}", full(&self.name, key)));
    }

    fn get<T>(&self, key: &str, expected: &str, read: impl FnOnce(&'a DeValue<'a>) -> Option<T>) -> Option<T> {
        let row = self.row(key)?;
        let value = read(row.value.get_ref());
        if value.is_none() {
            let found = found(row.value.get_ref());
            let what = format!("{}: expected {expected}, found {found}", full(&self.name, row.key));
            self.report.error(row.value.span().start, &what);
        }
        value
    }

    pub(super) fn string(&self, key: &str) -> Option<String> {
        self.get(key, "a string", |v| v.as_str().map(str::to_owned))
    }

    /// A string that `read` understands; `expected` says which ones.
    pub(super) fn word<T>(&self, key: &str, expected: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.get(key, expected, |v| read(v.as_str()?))
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.get(key, "true or false", DeValue::as_bool)
    }

    pub(super) fn number(&self, key: &str) -> Option<i64> {
        self.get(key, "a whole number", integer)
    }

    /// Whole seconds, or a duration as Go writes it.
    pub(super) fn duration(&self, key: &str) -> Option<Duration> {
        let expected = "a number of seconds or a duration such as \"1h30m\"";
        self.get(key, expected, |v| match v {
            DeValue::Integer(_) => u64::try_from(integer(v)?.max(0)).ok().map(Duration::from_secs),
            _ => values::duration(v.as_str()?),
        })
    }

    /// Bytes, or a size with a unit.
    pub(super) fn size(&self, key: &str) -> Option<u64> {
        let expected = "a number of bytes or a size such as \"64MB\"";
        self.get(key, expected, |v| match v {
            DeValue::Integer(_) => u64::try_from(integer(v)?).ok(),
            _ => values::size(v.as_str()?),
        })
    }

    /// Octal digits in a string, or a number as it is.
    pub(super) fn octal(&self, key: &str) -> Option<u32> {
        self.get(key, "octal digits such as \"027\"", |v| match v {
            DeValue::Integer(_) => u32::try_from(integer(v)?).ok(),
            _ => u32::from_str_radix(v.as_str()?, 8).ok(),
        })
    }

    pub(super) fn strings(&self, key: &str) -> Option<Vec<String>> {
        self.get(key, "a list of strings", |v| {
            v.as_array()?.iter().map(|s| s.get_ref().as_str().map(str::to_owned)).collect()
        })
    }

    pub(super) fn flags(&self, key: &str) -> Option<BTreeMap<String, bool>> {
        self.get(key, "a table of true and false", |v| {
            v.as_table()?.iter().map(|(k, v)| Some((k.get_ref().to_string(), v.get_ref().as_bool()?))).collect()
        })
    }

    /// The value as it is, when nothing of ours reads it; does not complain.
    pub(super) fn raw(&self, key: &str) -> Option<&'a DeValue<'a>> {
        self.row(key).map(|row| row.value.get_ref())
    }

    pub(super) fn tables(&self, key: &'a str) -> Vec<Table<'a>> {
        let found = self.get(key, "[[tables]]", |v| {
            v.as_array()?.iter().map(|t| Some((t.span().start, t.get_ref().as_table()?))).collect::<Option<Vec<_>>>()
        });
        let tables = found.unwrap_or_default();
        tables.into_iter().map(|(at, table)| Table::new(self.report, key, at, table)).collect()
    }

    /// A table inside this one.
    pub(super) fn table(&self, key: &str) -> Option<Table<'a>> {
        let inner = self.get(key, "a table", DeValue::as_table)?;
        let row = &self.rows[key];
        Some(Table::new(self.report, &full(&self.name, row.key), row.at, inner))
    }

    /// One warning for each key that was not asked for; `known` are those that gitlab-runner has.
    pub(super) fn leftovers(&self, known: &[&str]) {
        for (lower, row) in self.rows.iter().filter(|(_, row)| !row.asked.get()) {
            let name = full(&self.name, row.key);
            let what =
                if known.contains(&lower.as_str()) { "has no effect here (yet)" } else { "unknown key, ignored" };
            self.report.warn(row.at, &format!("{name}: {what}"));
        }
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let DeValue::Integer(n) = value else { return None };
    i64::from_str_radix(n.as_str(), n.radix()).ok()
}

fn full(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

/// The value as it is in the file, or its kind where that would be long.
fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(s) if s.chars().count() <= 40 => format!("{s:?}"),
        DeValue::String(_) => "a long string".to_owned(),
        DeValue::Integer(n) => n.to_string(),
        DeValue::Float(f) => f.to_string(),
        DeValue::Boolean(b) => b.to_string(),
        DeValue::Datetime(d) => d.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
