//! Jobs' lives with a scripted lease over real directories. The job processes are shells that hold the
//! lock and write what a test wants; the real ones are in `tests/it`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::*;
use crate::clock::{BootTime, boot_id};
use crate::forge::{Cut, Heard, Refusal, Side, Wanted};
use crate::jobdir::{LeaseRecord, Started};
use crate::model::{ForgeKind, Job, JobName, Settings, VERSION, Verdict};
use crate::process::{self, table};
use crate::shutdown::Level as Stopped;

/// What a server says, and what it was told.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    confirms: VecDeque<Confirm>,
    /// While it runs; then for ever what the last one says.
    wants: VecDeque<Wanted>,
    settled_early: bool,
    /// So many reports fail; then it takes one.
    failing: usize,
    confirmed: usize,
    attended: usize,
    outcomes: Vec<Outcome>,
    sides: Vec<Box<dyn Side>>,
    heard: Vec<Wanted>,
}

/// Says what it was given, then waits to be cut.
struct Listener {
    says: Vec<Heard>,
    cut: (crossbeam_channel::Sender<()>, crossbeam_channel::Receiver<()>),
}

impl Side for Listener {
    fn cut(&self) -> Cut {
        let cut = self.cut.0.clone();
        Box::new(move || {
            let _ = cut.try_send(());
        })
    }

    fn run(self: Box<Self>, tell: crossbeam_channel::Sender<Heard>) {
        self.says.into_iter().for_each(|heard| tell.send(heard).unwrap());
        self.cut.1.recv_timeout(Duration::from_secs(30)).expect("it is cut");
    }
}

struct Scripted {
    server: Server,
    job: Job,
}

fn soon(ms: u64) -> Due {
    let at = Instant::now() + Duration::from_millis(ms);
    Due { soonest: at, at }
}

impl Lease for Scripted {
    fn name(&self) -> JobName {
        JobName::new(ForgeKind::Spool, "file:///x", &self.job.id)
    }

    fn record(&self) -> LeaseRecord {
        let data = serde_json::Value::Null;
        LeaseRecord { version: VERSION, forge: ForgeKind::Spool, entry: "e".into(), phase: Phase::Taken, data }
    }

    fn job(&self) -> Option<&Job> {
        Some(&self.job)
    }

    fn confirm(&mut self, _: &JobDir, _: Instant) -> Confirm {
        let mut said = self.server.0.lock();
        said.confirmed += 1;
        said.confirms.pop_front().expect("no test confirms more often than it says")
    }

    fn attend(&mut self, _: &JobDir, ended: Option<&Outcome>, _: Instant) -> Attended {
        let mut said = self.server.0.lock();
        said.attended += 1;
        let Some(outcome) = ended else {
            if said.settled_early {
                return Attended::Settled;
            }
            let wanted = if said.wants.len() > 1 { said.wants.pop_front() } else { said.wants.front().copied() };
            return Attended::Held { wanted: wanted.unwrap_or(Wanted::Run), due: soon(10), contact: Contact::Fine };
        };
        if said.failing > 0 {
            said.failing -= 1;
            return Attended::Held { wanted: Wanted::Run, due: soon(10), contact: Contact::Failing };
        }
        said.outcomes.push(outcome.clone());
        Attended::Settled
    }

    fn sides(&mut self, _: &JobDir) -> Vec<Box<dyn Side>> {
        std::mem::take(&mut self.server.0.lock().sides)
    }

    fn heard(&mut self, news: Heard) {
        let Heard::Wanted(wanted) = news else { panic!("{news:?} is not the lease's") };
        self.server.0.lock().heard.push(wanted);
    }
}

struct Scene {
    _tmp: tempfile::TempDir,
    desk: Desk,
    server: Server,
    heard: crossbeam_channel::Receiver<News>,
}

fn scene() -> Scene {
    let tmp = tempfile::tempdir().unwrap();
    let ms = Duration::from_millis;
    let timing = Timing {
        deliver_after: ms(60),
        backoff_min: ms(5),
        backoff_max: ms(20),
        cancel_least: ms(150),
        kill_lead: ms(50),
        sweep_limit: ms(3000),
        ..Timing::default()
    };
    let (news, heard) = crossbeam_channel::unbounded();
    let desk = Desk {
        jobs: tmp.path().join("jobs"),
        broken: tmp.path().join("broken"),
        timing,
        ground: Ground::new(timing, tmp.path().to_owned(), None),
        stop: Stop::default(),
        registry: Registry::default(),
        news,
    };
    std::fs::create_dir(&desk.jobs).unwrap();
    Scene { _tmp: tmp, desk, server: Server::default(), heard }
}

impl Scene {
    fn lease(&self) -> Box<Scripted> {
        let job = Job {
            version: VERSION,
            forge: ForgeKind::Spool,
            id: "1".into(),
            project: "p".into(),
            name: "j".into(),
            timeout: Duration::from_secs(3600),
            slot: 0,
            project_slot: 0,
            settings: Settings::default(),
            server: Default::default(),
            payload: RawValue::from_string("{}".into()).unwrap(),
        };
        Box::new(Scripted { server: self.server.clone(), job })
    }

    fn fresh(&self, confirms: impl IntoIterator<Item = Confirm>) -> Fate {
        self.server.0.lock().confirms.extend(confirms);
        fresh(&self.desk, "e", self.lease(), "0")
    }

    /// A directory whose lock this shell holds, as its stdin. Its script has `$DIR`.
    #[expect(clippy::zombie_processes, reason = "the code under test reaps it")]
    fn running(&self, script: &str) -> Held {
        let lease = self.lease();
        let dir = JobDir::create(&self.desk.jobs, &lease.name(), |dir| {
            dir.write_lease(&lease.record())?;
            dir.write_job(&lease.job)
        })
        .unwrap();
        let lock = dir.try_lock().unwrap().unwrap();
        let child = process::command("bash")
            .args(["-c", script])
            .env("DIR", dir.path())
            .env("RUNNER_JOB", self.tag())
            .stdin(lock.into_file())
            .spawn()
            .unwrap();
        let start_time = table::stat(child.id()).unwrap().start_time;
        let tag = format!("RUNNER_JOB={}", self.tag());
        let started = Started {
            version: VERSION,
            boot_id: boot_id(),
            at: BootTime::now(),
            pid: child.id(),
            start_time,
            tag,
            cgroup: None,
        };
        dir.write_started(&started).unwrap();
        let job = lease.job.clone();
        let mut held = Held::new(&self.desk, dir, lease, "e", "0").with_job(&self.desk, &job);
        // The test binary is no job process.
        held.reported = true;
        held
    }

    fn tag(&self) -> String {
        self._tmp.path().display().to_string()
    }

    fn dirs(&self) -> usize {
        std::fs::read_dir(&self.desk.jobs).unwrap().count()
    }

    /// The one verdict that the server was told.
    #[track_caller]
    fn told(&self) -> (Verdict, Option<Why>) {
        let said = self.server.0.lock();
        let [outcome] = &said.outcomes[..] else { panic!("told {} outcomes", said.outcomes.len()) };
        (outcome.verdict, outcome.why)
    }
}

const SUCCEED: &str = "sleep 0.1; echo '{\"version\":1,\"verdict\":\"success\"}' >$DIR/o; mv $DIR/o $DIR/outcome.json";

#[test]
fn a_running_job_is_attended_until_its_process_is_gone_then_reported_once_and_removed() {
    let scene = scene();
    let held = scene.running(SUCCEED);
    assert!(matches!(again(&scene.desk, held), Fate::Done));
    assert_eq!(scene.told(), (Verdict::Success, None));
    assert!(scene.server.0.lock().attended > 3);
    assert_eq!(scene.dirs(), 0);
    assert!(!scene.desk.registry.is_held(&scene.lease().name()));
}

#[test]
fn a_job_that_the_server_took_back_is_not_reported() {
    let scene = scene();
    let again = Confirm::Again { at: Instant::now() + Duration::from_millis(20) };
    assert!(matches!(scene.fresh([again, Confirm::Gone { why: "403".into() }]), Fate::Done));
    assert_eq!((scene.server.0.lock().attended, scene.dirs()), (0, 0));
}

#[test]
fn a_job_that_was_canceled_before_its_start_is_reported_and_not_run() {
    let scene = scene();
    assert!(matches!(scene.fresh([Confirm::Ended { why: Why::Canceled }]), Fate::Done));
    assert_eq!(scene.told(), (Verdict::Canceled, Some(Why::Canceled)));
    assert_eq!(scene.dirs(), 0);
}

#[test]
fn a_job_that_comes_while_the_runner_is_terminated_ends_as_that() {
    let scene = scene();
    scene.desk.stop.raise(Stopped::Abort { by: By::Term, kill_after: Duration::ZERO });
    assert!(matches!(scene.fresh([]), Fate::Done));
    assert_eq!(scene.told(), (Verdict::Failed, Some(Why::Terminated)));
}

#[test]
fn a_job_that_comes_at_a_hand_over_stays_as_it_was_taken() {
    let scene = scene();
    scene.desk.stop.raise(Stopped::Handing);
    assert!(matches!(scene.fresh([]), Fate::Left));
    assert_eq!((scene.server.0.lock().confirmed, scene.dirs()), (0, 1));
    let dir = JobDir::open(&scene.desk.jobs.join(scene.lease().name().as_str())).unwrap();
    assert!(matches!(dir.inspect().unwrap(), State::NeverStarted(_)));
    assert_eq!(dir.lease().unwrap().phase, Phase::Taken);
}

#[test]
fn a_job_that_is_held_is_not_taken_twice() {
    let scene = scene();
    scene.desk.stop.raise(Stopped::Handing);
    scene.fresh([]);
    assert!(matches!(scene.fresh([]), Fate::Done));
    assert_eq!((scene.server.0.lock().attended, scene.dirs()), (0, 1));
}

#[test]
fn a_hand_over_leaves_a_running_job_alone() {
    let scene = scene();
    let held = scene.running("sleep 30.5");
    let dir = held.dir.again().unwrap();
    scene.desk.stop.raise(Stopped::HandOver);
    assert!(matches!(again(&scene.desk, held), Fate::Left));
    assert!(matches!(dir.inspect().unwrap(), State::Running));
    control::kill(&dir, None, scene.desk.timing);
}

#[test]
fn a_process_that_does_not_end_when_told_is_killed_with_its_tree_and_is_what_it_was_told() {
    let scene = scene();
    scene.server.0.lock().wants = [Wanted::Run, Wanted::Abort(Why::Aborted)].into();
    let held = scene.running("setsid sleep 31.5 </dev/null & sleep 31.5 </dev/null");
    let tag = held.dir.started().unwrap().tag;
    assert!(matches!(again(&scene.desk, held), Fate::Done));
    assert_eq!(scene.told(), (Verdict::Failed, Some(Why::Aborted)));
    let left = table::all().into_iter().filter(|s| !s.zombie && table::has_in_environment(s.pid, &tag)).count();
    assert_eq!(left, 0);
}

#[test]
fn a_lease_that_is_settled_early_ends_its_job_and_is_not_attended_again() {
    let scene = scene();
    scene.server.0.lock().settled_early = true;
    let held = scene.running("sleep 32.5");
    assert!(matches!(again(&scene.desk, held), Fate::Done));
    assert_eq!((scene.server.0.lock().attended, scene.dirs()), (1, 0));
}

#[test]
fn a_report_that_fails_for_a_while_is_made_again() {
    let scene = scene();
    scene.server.0.lock().failing = 3;
    assert!(matches!(again(&scene.desk, scene.running(SUCCEED)), Fate::Done));
    assert_eq!(scene.told(), (Verdict::Success, None));
}

#[test]
fn a_server_that_takes_no_report_frees_the_slot_and_a_deliverer_goes_on() {
    let scene = scene();
    scene.server.0.lock().failing = 1000;
    let Fate::Undelivered(delivery) = again(&scene.desk, scene.running(SUCCEED)) else { panic!() };
    assert_eq!(scene.desk.registry.claim("e", "p").number, 0);
    scene.server.0.lock().failing = 3;
    let (tell, done) = crossbeam_channel::unbounded();
    let deliverer = deliver::start(&scene.desk, "x", move |gone| tell.send(gone).unwrap()).unwrap();
    deliverer.jobs.send(*delivery).unwrap();
    assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(deliver::Gone::Delivered));
    drop(deliverer.jobs);
    deliverer.thread.join().unwrap();
    assert_eq!(scene.told(), (Verdict::Success, None));
    assert_eq!(scene.dirs(), 0);
}

#[test]
fn a_deliverer_leaves_its_jobs_when_the_runner_does() {
    let scene = scene();
    scene.server.0.lock().failing = 1000;
    let Fate::Undelivered(delivery) = again(&scene.desk, scene.running(SUCCEED)) else { panic!() };
    let (tell, done) = crossbeam_channel::unbounded();
    let deliverer = deliver::start(&scene.desk, "x", move |gone| tell.send(gone).unwrap()).unwrap();
    deliverer.jobs.send(*delivery).unwrap();
    scene.desk.stop.raise(Stopped::Leave);
    assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(deliver::Gone::Left));
    deliverer.thread.join().unwrap();
    assert_eq!(scene.dirs(), 1);
}

#[test]
fn what_a_listener_hears_goes_to_the_process_the_lease_and_the_supervisor() {
    let scene = scene();
    let gone = Refusal::Retire { exit: 3, why: "once".into() };
    let says = vec![Heard::Wanted(Wanted::Abort(Why::Aborted)), Heard::Entry(gone), Heard::Another(scene.lease())];
    let cut = crossbeam_channel::bounded(1);
    scene.server.0.lock().sides.push(Box::new(Listener { says, cut }));
    let held = scene.running("sleep 33.5");
    assert!(matches!(again(&scene.desk, held), Fate::Done));
    assert_eq!(scene.told(), (Verdict::Failed, Some(Why::Aborted)));
    assert_eq!(scene.server.0.lock().heard, [Wanted::Abort(Why::Aborted)]);
    let news: Vec<News> = scene.heard.try_iter().collect();
    assert!(matches!(
        &news[..],
        [News::Entry { refusal: Refusal::Retire { exit: 3, .. }, .. }, News::Another { key, .. }] if key == "e"
    ));
}
