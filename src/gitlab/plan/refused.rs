//! A job that is refused before it begins (protocol §1.5.5, build §1.1): one line is its whole log.

use std::time::Instant;

use crate::forge::{Ladder, LogId, News, Next, Plan, Run, Stage, StageId, Streams};
use crate::model::{Outcome, Why};

use super::say;

pub(super) struct Refused {
    /// `None` once it was said.
    line: Option<Vec<u8>>,
    outcome: Outcome,
}

impl Refused {
    /// The server asks for what we have said that we cannot do: words without any dress.
    pub(super) fn bare(text: String) -> Refused {
        let outcome = Outcome { exit_code: Some(3), ..Outcome::failed(Why::System, text.replace('\n', "; ")) };
        Refused { line: Some(format!("{text}\n").into_bytes()), outcome }
    }

    /// The job's own texts cannot be: it ends as it would have ended later.
    pub(super) fn unfit(text: String) -> Refused {
        let line = Some(say::error(&format!("Job failed: {text}")));
        Refused { line, outcome: Outcome::failed(Why::Configuration, text) }
    }
}

impl Plan for Refused {
    fn next(&mut self, _news: News, _now: Instant) -> Next {
        let Some(line) = self.line.take() else { return Next::Over };
        Next::Start(Stage {
            id: StageId(1),
            log: LogId::default(),
            name: "print".to_owned(),
            run: Run::Print(vec![line]),
            limit: None,
            ladder: Ladder(Vec::new()),
            drain: None,
            streams: Streams::Voice(2),
            collect: Vec::new(),
        })
    }

    fn outcome(&mut self) -> Outcome {
        self.outcome.clone()
    }
}
