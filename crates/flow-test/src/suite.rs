//! Finds test files, reads them with their flows, and runs their cases on several threads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use inspan_engine::{ProviderRegistry, Replayer};
use inspan_flow::{Loaded, NodeRegistry, Owner, compile, load};
use serde_json::{Map, Value};

use crate::{
    answered::AnsweredProvider,
    cases::{self, Case},
    coverage::SeenFlow,
    expect::FailedExpectation,
    file::{self, FileProblem, TestFile},
    report::{CaseReport, FileReport, Report},
    run::{self, CaseRun, SuiteContext, TestedFlow},
    snapshot::{self, Snapshots},
    trace::Trace,
};

/// How deep folders are searched, and how many test files are taken.
const DEEPEST: usize = 16;
const MOST_FILES: usize = 10_000;

/// Folders without tests.
const SKIPPED: &[&str] = &["node_modules", "target"];

/// Runs test files with the node types of a program. Nothing that a flow does leaves the process: no agent, no program,
/// no network.
///
/// ```
/// use std::path::PathBuf;
///
/// use inspan_flow::builtin_nodes;
/// use inspan_flow_test::{Options, Suite, find};
///
/// let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
/// let providers = inspan_providers::builtin().into_iter().collect();
/// let files = find(&[folder]).unwrap();
/// let report = Suite::new(&providers, builtin_nodes).run(&files, &Options::default());
/// assert!(report.passed(), "{}", report.tap());
/// ```
pub struct Suite {
    around: SuiteContext,
}

/// How the cases are run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only cases whose name, or whose file's path, contains one of these texts; all if there are none.
    pub filter: Vec<String>,
    /// Only the case with this name, if there is one.
    pub only: Option<String>,
    /// Whether prompts that differ from their snapshots are accepted.
    pub snapshots: SnapshotMode,
    /// How many cases run at once; as many as the machine has processors if absent.
    pub threads: Option<NonZeroUsize>,
}

/// What is done about snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotMode {
    /// They are compared.
    #[default]
    Compare,
    /// They are written again.
    Update,
}

/// A test file that is ready to run.
struct Ready {
    path: PathBuf,
    flow: Arc<TestedFlow>,
    cases: Vec<Case>,
    /// Why they cannot be read, if that is so and they are to be written again.
    snapshots: Result<Snapshots, String>,
    /// The recordings of the cases, by their folders.
    recordings: BTreeMap<PathBuf, Replayer>,
}

impl Suite {
    /// A suite over these providers, none of which is ever called, and the node types made of them.
    pub fn new(providers: &ProviderRegistry, nodes: impl FnOnce(&ProviderRegistry) -> NodeRegistry) -> Self {
        let nodes = nodes(&providers.map(AnsweredProvider::wrap));
        let as_they_are = BTreeSet::new();
        Self { around: SuiteContext { nodes, as_they_are, settings: None, owner: Owner::of_process() } }
    }

    /// Changes each flow before it is tested, as settings do that hold for its file. The error says in words why they cannot be used.
    #[must_use]
    pub fn with_settings(
        mut self,
        settings: impl Fn(&Path, Loaded) -> Result<Loaded, String> + Send + Sync + 'static,
    ) -> Self {
        self.around.settings = Some(Box::new(settings));
        self
    }

    /// Lets nodes of a type run as they are, because they reach nothing outside. Of other types of a program the cases
    /// give the outputs.
    #[must_use]
    pub fn run_as_it_is(mut self, node_type: impl Into<String>) -> Self {
        self.around.as_they_are.insert(node_type.into());
        self
    }

    /// Runs the cases of these test files.
    pub fn run(&self, files: &[PathBuf], options: &Options) -> Report {
        self.run_and_notify(files, options, &|_| {})
    }

    /// As [`Suite::run`], and gives each case to the caller when it and those before it have ended.
    pub fn run_and_notify(
        &self,
        files: &[PathBuf],
        options: &Options,
        ended: &(dyn Fn(&CaseReport) + Sync),
    ) -> Report {
        let began = now();
        let mut report = Report::default();
        let mut flows = BTreeMap::new();
        let mut ready = Vec::new();
        for path in files {
            match self.read(path, &mut flows, options.snapshots) {
                Ok(file) => ready.push(file),
                Err(problems) => report.problems.extend(problems),
            }
        }
        let selected: Vec<(usize, usize)> = ready
            .iter()
            .enumerate()
            .flat_map(|(at, file)| {
                let wanted =
                    file.cases.iter().enumerate().filter(|(_, case)| is_selected(options, file, case));
                wanted.map(move |(case, _)| (at, case))
            })
            .collect();
        let runs = self.run_all(&ready, &selected, options, ended);
        let mut seen: BTreeMap<&Path, SeenFlow> = BTreeMap::new();
        for (at, file) in ready.iter().enumerate() {
            let mut cases = Vec::new();
            let mut prompts = Snapshots::new();
            for run in runs.iter().filter(|run| run.file == at) {
                seen.entry(&file.flow.path).or_default().add(&run.trace);
                prompts.extend(run.prompts.clone().map(|prompts| (run.report.name.clone(), prompts)));
                cases.push(run.report.clone());
            }
            let mut warnings = self.settle(file, prompts, options, &mut report);
            if cases.len() == file.cases.len() && cases.iter().all(|case| case.passed) {
                let runs = runs.iter().filter(|run| run.file == at);
                let unused = runs.map(|run| run.unused_defaults.clone()).reduce(|all, of_one| &all & &of_one);
                let unused = unused.unwrap_or_default();
                warnings
                    .extend(unused.iter().map(|key| format!("`defaults.answers.{key}` is used by no case")));
            }
            report.files.push(FileReport {
                file: file.path.clone(),
                flow: file.flow.path.clone(),
                cases,
                warnings,
            });
        }
        for file in &ready {
            if let Some(seen) = seen.remove(&*file.flow.path) {
                report.coverage.push(seen.coverage(&file.flow.path, &file.flow.graph));
            }
        }
        report.duration = began.elapsed();
        report
    }

    /// Stores snapshots that were accepted; warns of those that no case has any more.
    fn settle(
        &self,
        file: &Ready,
        prompts: Snapshots,
        options: &Options,
        report: &mut Report,
    ) -> Vec<String> {
        let has_one =
            |name: &String| file.cases.iter().any(|case| case.name == *name && case.expect.wants_snapshot());
        let path = snapshot::path(&file.path);
        // What is stored of a case that does not run, or fails, would be lost.
        let is_whole =
            file.cases.iter().all(|case| !case.expect.wants_snapshot() || prompts.contains_key(&case.name));
        if let (Err(why), false) = (&file.snapshots, is_whole) {
            report.problems.push(problem(&path, why.clone()));
            return Vec::new();
        }
        if options.snapshots == SnapshotMode::Compare {
            let stale = file.snapshots.iter().flat_map(BTreeMap::keys).filter(|name| !has_one(name));
            return stale
                .map(|name| format!("the snapshot of `{name}` is of no case: `--update` removes it"))
                .collect();
        }
        let mut all = file.snapshots.clone().unwrap_or_default();
        // A case that fails keeps what was accepted of it.
        all.retain(|name, _| has_one(name));
        all.extend(prompts);
        if file.snapshots.as_ref() != Ok(&all) {
            match snapshot::write(&path, &all) {
                Ok(()) => report.written.push(path),
                Err(error) => report.problems.push(problem(&path, error.to_string())),
            }
        }
        Vec::new()
    }

    fn run_all(
        &self,
        ready: &[Ready],
        selected: &[(usize, usize)],
        options: &Options,
        ended: &(dyn Fn(&CaseReport) + Sync),
    ) -> Vec<FinishedCase> {
        let processors = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = options.threads.unwrap_or_else(processors).get().min(selected.len().max(1));
        let next = AtomicUsize::new(0);
        let all = Mutex::new(InOrder { done: BTreeMap::new(), reported: 0 });
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some((file, case)) = selected.get(number) else { return };
                // Each case has its own runtime and its own time.
                let done = self.run_one(*file, &ready[*file], &ready[*file].cases[*case], options);
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.done.insert(number, done);
                // The caller gets them in the order of the files, whichever ends first.
                while let Some(done) = all.done.get(&all.reported) {
                    ended(&done.report);
                    all.reported += 1;
                }
            }
        };
        // Not on the thread of the caller, which may be one of a runtime.
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        all.into_inner().unwrap_or_else(PoisonError::into_inner).done.into_values().collect()
    }

    fn run_one(&self, at: usize, file: &Ready, case: &Case, options: &Options) -> FinishedCase {
        let began = now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let recordings = case.recordings.as_ref().and_then(|dir| file.recordings.get(dir));
        let run = match runtime {
            Ok(runtime) => runtime.block_on(run::run(&self.around, &file.flow, case, recordings)),
            Err(error) => {
                let why = format!("the runtime does not start: {error}");
                CaseRun { failures: vec![FailedExpectation::new("session", why)], ..CaseRun::default() }
            }
        };
        let CaseRun { trace, sent, mut failures, warnings, unused_defaults } = run;
        let wants = case.expect.wants_snapshot() && failures.is_empty();
        let prompts = wants.then(|| snapshot::of(&sent));
        if let Some(prompts) = prompts.as_ref().filter(|_| options.snapshots == SnapshotMode::Compare) {
            let stored = file.snapshots.as_ref().ok().and_then(|stored| stored.get(&case.name));
            failures = snapshot::compare(stored, prompts);
        }
        let report = CaseReport {
            file: file.path.clone(),
            name: case.name.clone(),
            line: case.line,
            passed: failures.is_empty(),
            failures,
            warnings,
            duration: began.elapsed(),
            session: trace.duration(),
        };
        FinishedCase { file: at, report, trace, prompts, unused_defaults }
    }

    fn read(
        &self,
        path: &Path,
        flows: &mut BTreeMap<PathBuf, Result<Arc<TestedFlow>, FileProblem>>,
        mode: SnapshotMode,
    ) -> Result<Ready, Vec<FileProblem>> {
        let text = read_text(path).map_err(|problem| vec![problem])?;
        let written = file::read(path, &text).map_err(|problem| vec![problem])?;
        let flow_path = flow_of(path, written.flow.as_ref().map(|flow| flow.value.as_str()));
        let known = flows.entry(flow_path.clone()).or_insert_with(|| self.flow(&flow_path));
        let flow = known.clone().map_err(|problem| {
            let at = written.flow.as_ref().map(|flow| flow.referenced);
            vec![FileProblem::new(path, at, Some("flow".to_owned()), problem.message)]
        })?;
        let cases = cases::cases(path, &written, &flow.graph, &self.around.nodes)?;
        let mut recordings = BTreeMap::new();
        let mut problems = Vec::new();
        for (index, case) in cases.iter().enumerate() {
            let Some(dir) = case.recordings.as_ref().filter(|dir| !recordings.contains_key(*dir)) else {
                continue;
            };
            match Replayer::load(dir) {
                Ok(replayer) => drop(recordings.insert(dir.clone(), replayer)),
                Err(error) => {
                    let own = written.cases.get(index).filter(|own| own.value.recordings.is_some());
                    let at = own.or(written.defaults.as_ref()).map(|written| written.referenced);
                    let of = own.map_or_else(|| "defaults".to_owned(), |_| format!("cases[{index}]"));
                    let problem =
                        FileProblem::new(path, at, Some(format!("{of}.recordings")), error.to_string());
                    // Many cases may have that of the defaults.
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
            }
        }
        let stored = snapshot::path(path);
        let snapshots = snapshot::read(&stored);
        if let (Err(why), SnapshotMode::Compare) = (&snapshots, mode) {
            return Err(vec![problem(&stored, why.clone())]);
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Ready { path: path.to_owned(), flow, cases, snapshots, recordings })
    }

    fn flow(&self, path: &Path) -> Result<Arc<TestedFlow>, FileProblem> {
        let mut loaded = load(path).map_err(|error| problem(path, error.to_string()))?;
        if let Some(settings) = &self.around.settings {
            loaded = settings(path, loaded).map_err(|why| problem(path, why))?;
        }
        let compiled = compile(&loaded, &self.around.nodes)
            .map_err(|problems| problem(path, format!("the flow has errors:\n{problems}")))?;
        Ok(Arc::new(TestedFlow { path: path.to_owned(), graph: Arc::new(compiled.graph) }))
    }
}

/// Cases that have run, by their numbers, and how many of them the caller has been given.
struct InOrder {
    done: BTreeMap<usize, FinishedCase>,
    reported: usize,
}

/// A case that has run.
struct FinishedCase {
    file: usize,
    report: CaseReport,
    trace: Trace,
    /// What it sent to agents, if that is compared.
    prompts: Option<Map<String, Value>>,
    /// The answers of `defaults` that it did not ask for.
    unused_defaults: BTreeSet<String>,
}

fn is_selected(options: &Options, file: &Ready, case: &Case) -> bool {
    let path = file.path.display().to_string();
    let wanted = |text: &String| case.name.contains(text.as_str()) || path.contains(text.as_str());
    let is_wanted = options.filter.is_empty() || options.filter.iter().any(wanted);
    is_wanted && options.only.as_ref().is_none_or(|only| case.name == *only)
}

fn problem(path: &Path, message: String) -> FileProblem {
    FileProblem::new(path, None, None, message)
}

fn read_text(path: &Path) -> Result<String, FileProblem> {
    let size = fs::metadata(path).map_err(|error| problem(path, error.to_string()))?.len();
    if size > file::MAX_BYTES {
        return Err(problem(
            path,
            format!("it has {size} bytes, and a test file has at most {}", file::MAX_BYTES),
        ));
    }
    fs::read_to_string(path).map_err(|error| problem(path, error.to_string()))
}

/// The flow that a test file is for.
fn flow_of(path: &Path, written: Option<&str>) -> PathBuf {
    let folder = path.parent().unwrap_or(Path::new(""));
    if let Some(written) = written {
        return folder.join(written);
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = stem(name).unwrap_or(name);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("yaml");
    let beside = folder.join(format!("{stem}.{extension}"));
    match folder.parent() {
        Some(above) if !beside.is_file() => {
            let above = above.join(format!("{stem}.{extension}"));
            if above.is_file() { above } else { beside }
        }
        _ => beside,
    }
}

/// The name of the flow in the name of a test file: `review` of `review.test.yaml`.
fn stem(name: &str) -> Option<&str> {
    name.strip_suffix(".test.yaml").or_else(|| name.strip_suffix(".test.yml")).filter(|stem| !stem.is_empty())
}

/// The test files that paths mean: a test file itself, the test files of a flow (beside it and in `tests/`), all test
/// files of a folder.
///
/// # Errors
/// A path that cannot be read, or that means no test file.
pub fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, FileProblem> {
    let mut found = BTreeSet::new();
    for path in paths {
        let before = found.len();
        let metadata = fs::metadata(path).map_err(|error| problem(path, error.to_string()))?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if metadata.is_dir() {
            search(path, DEEPEST, &mut found)?;
        } else if stem(name).is_some() {
            found.insert(path.clone());
            continue;
        } else {
            of_flow(path, &mut found)?;
        }
        if found.len() == before && !paths.iter().any(|other| other != path && found.contains(other)) {
            let message = match metadata.is_dir() {
                true => "there are no test files (`NAME.test.yaml`) in this folder",
                false => "this flow has no test file: none beside it, and none in `tests`, is for it",
            };
            return Err(problem(path, message.to_owned()));
        }
    }
    Ok(found.into_iter().collect())
}

fn search(folder: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) -> Result<(), FileProblem> {
    let failed = |error: std::io::Error| problem(folder, error.to_string());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !SKIPPED.contains(name)) else { continue };
        // The type of the entry itself: a link to a folder is not followed.
        let kind = entry.file_type().map_err(failed)?;
        let hidden = name.starts_with('.') && name != ".inspan";
        if kind.is_dir() && !hidden && depth > 0 {
            search(&entry.path(), depth - 1, found)?;
        } else if !kind.is_dir() && stem(name).is_some() {
            found.insert(tidy(&entry.path()));
        }
        if found.len() > MOST_FILES {
            return Err(problem(folder, format!("there are more than {MOST_FILES} test files")));
        }
    }
    Ok(())
}

/// The path without `./` before it.
fn tidy(path: &Path) -> PathBuf {
    path.strip_prefix(".").map_or_else(|_| path.to_owned(), Path::to_owned)
}

/// The test files of a flow: beside it, and in `tests`. One that cannot be read may be for it, and says what is wrong when it
/// is run.
fn of_flow(flow: &Path, found: &mut BTreeSet<PathBuf>) -> Result<(), FileProblem> {
    let folder = flow.parent().unwrap_or(Path::new(""));
    let beside = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let real = flow.canonicalize().ok();
    for folder in [beside.to_owned(), folder.join("tests")] {
        if !folder.is_dir() {
            continue;
        }
        let failed = |error: std::io::Error| problem(&folder, error.to_string());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = tidy(&entry.map_err(failed)?.path());
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if stem(name).is_none() || path.is_dir() {
                continue;
            }
            let is_for_it = match read_text(&path).and_then(|text| file::read(&path, &text)) {
                Ok(TestFile { flow, .. }) => {
                    let named = flow.as_ref().map(|flow| flow.value.as_str());
                    flow_of(&path, named).canonicalize().ok() == real
                }
                Err(_) => true,
            };
            if is_for_it {
                found.insert(path);
            }
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "how long the cases took is measured by the machine's clock")]
fn now() -> Instant {
    Instant::now()
}
