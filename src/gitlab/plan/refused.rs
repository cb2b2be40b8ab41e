//! A job that is refused before it begins (protocol §1.5.5).

use std::time::Instant;

use crate::forge::{Ladder, LogId, News, Next, Plan, Run, Stage, StageId, Streams};
use crate::model::{Outcome, Why};

/// A job that is refused before it begins: its words are the whole log, without any dress.
pub(super) struct Refused {
    pub(super) text: String,
    pub(super) said: bool,
}

impl Plan for Refused {
    fn next(&mut self, _news: News, _now: Instant) -> Next {
        if std::mem::replace(&mut self.said, true) {
            return Next::Over;
        }
        Next::Start(Stage {
            id: StageId(1),
            log: LogId::default(),
            name: "print".to_owned(),
            run: Run::Print(vec![format!("{}\n", self.text).into_bytes()]),
            limit: None,
            ladder: Ladder(Vec::new()),
            drain: None,
            streams: Streams::Voice(2),
            collect: Vec::new(),
        })
    }

    fn outcome(&mut self) -> Outcome {
        Outcome { exit_code: Some(3), ..Outcome::failed(Why::System, self.text.replace('\n', "; ")) }
    }
}
