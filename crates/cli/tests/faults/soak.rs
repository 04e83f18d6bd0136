//! A server with many viewers, one of which reads nothing. It is killed and started again and again while sessions run.
//! In the end every viewer has the state that `show` prints.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use futures::{SinkExt as _, StreamExt as _, future::try_join_all};
use inspan_testkit::{RunningProcess, Stopwatch, pause};
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::watch, time::sleep};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use super::{
    Promise, Size,
    place::{FaultSandbox, until},
};

pub(super) const ROW: Promise = Promise {
    bound: "each of 100 viewers ends with the state of `show`, no question is answered twice, one that reads nothing \
            slows nobody",
    prove: soak,
};

const FLOW: &str = r#"
flow: { name: soak }
nodes:
  - { id: begin, type: exec, input: { argv: [sh, -c, "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.1; done"] } }
  - id: each
    type: control.foreach
    dependsOn: [begin]
    input: { items: [1, 2, 3, 4, 5, 6, 7, 8], as: item, maxConcurrency: 2 }
    body:
      nodes:
        - { id: work, type: exec, input: { argv: [sleep, "0.1"] } }
  - { id: ask, type: human.input, dependsOn: [each], input: { prompt: "Ship it?", choices: ["yes", "no"] } }
  - { id: last, type: echo, dependsOn: [ask], input: { text: "{{ ask.choice }}" } }
"#;

/// How many watch, over all sessions.
const VIEWERS: usize = 100;
/// So many rounds there are at least,
const ROUNDS: usize = 2;
/// and in full as many as begin within ten minutes.
const FULL: usize = 600;
/// How long the server runs between two kills.
const LIFE: Duration = Duration::from_millis(1_500);
/// How long a viewer may be without a message before it connects again.
const SILENCE: Duration = Duration::from_secs(20);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// What the viewers share.
struct ServerAddress {
    port: u16,
    token: String,
    connects: AtomicUsize,
    patches: AtomicU64,
}

fn soak(size: Size) -> anyhow::Result<String> {
    let place = size.place("soak-")?;
    place.write("soak.yaml", FLOW)?;
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let server = serve(&place, port)?;
    let token = std::fs::read_to_string(place.home().join("server-token"))?.trim().to_owned();
    let stage =
        Arc::new(ServerAddress { port, token, connects: AtomicUsize::new(0), patches: AtomicU64::new(0) });
    let at_least = Duration::from_secs(size.count(0, FULL) as u64);
    let sessions = size.count(8, 20);
    let (watch, mut kills) = (Stopwatch::start(), 0);
    let mut server = Some(server);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rounds = 0;
    while rounds < ROUNDS || watch.elapsed() < at_least {
        let round = rounds;
        rounds += 1;
        let ids: Vec<String> = (0..sessions).map(|at| format!("soak-{round}-{at}")).collect();
        for id in &ids {
            place.run(&["run", "soak.yaml", "--detach", "--session-id", id])?.expect(0)?;
        }
        let (end, ended) = watch::channel(false);
        let sleeper = runtime.spawn(asleep(Arc::clone(&stage), ids[0].clone(), ended));
        let viewers: Vec<_> = (0..VIEWERS - 1)
            .map(|at| {
                let (stage, id) = (Arc::clone(&stage), ids[at % ids.len()].clone());
                // The first viewer of each session answers its questions.
                runtime.spawn(view(stage, id, at < ids.len()))
            })
            .collect();
        let done = runtime.spawn(try_join_all(viewers));
        while !done.is_finished() {
            pause(LIFE);
            ensure!(watch.elapsed() < size.limit(), "the viewers of round {round} have not ended");
            if let Some(running) = server.take() {
                kill(running)?;
                kills += 1;
                server = Some(serve(&place, port)?);
            }
        }
        let seen: Vec<(String, Value)> =
            runtime.block_on(done)??.into_iter().collect::<anyhow::Result<_>>()?;
        end.send(true)?;
        runtime.block_on(sleeper)??;
        compare(&place, &seen)?;
    }
    let server = server.context("the server is gone")?;
    server.interrupt()?;
    server.finish()?.expect(0)?;
    place.sound()?;
    place.none_left()?;
    Ok(format!(
        "{} sessions, {VIEWERS} viewers each round, {kills} kills of the server, {} connections, {} patches, {:.0} s",
        rounds * sessions,
        stage.connects.load(Ordering::Relaxed),
        stage.patches.load(Ordering::Relaxed),
        watch.elapsed().as_secs_f64()
    ))
}

impl Size {
    fn limit(self) -> Duration {
        Duration::from_secs(self.count(120, 1_200) as u64)
    }
}

/// Starts the server, and waits until it answers.
fn serve(place: &FaultSandbox, port: u16) -> anyhow::Result<RunningProcess> {
    let running = place.start(place.command(&["serve", "--port", &port.to_string()]))?;
    until("the server listens", || Ok(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()))?;
    Ok(running)
}

fn kill(mut running: RunningProcess) -> anyhow::Result<()> {
    running.kill()?;
    running.finish().map(drop)
}

/// Connects, as often as it takes, and follows a session.
async fn connect(stage: &ServerAddress, session: &str) -> anyhow::Result<Socket> {
    let watch = Stopwatch::start();
    loop {
        let mut request = format!("ws://127.0.0.1:{}/ws", stage.port).into_client_request()?;
        request.headers_mut().insert("Authorization", format!("Bearer {}", stage.token).parse()?);
        if let Ok((mut socket, _)) = connect_async(request).await {
            stage.connects.fetch_add(1, Ordering::Relaxed);
            let wish = json!({ "subscribe": session, "state": true });
            if socket.send(Message::text(wish.to_string())).await.is_ok() {
                return Ok(socket);
            }
        }
        ensure!(watch.elapsed() < SILENCE, "the server does not come back");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A viewer that never reads.
async fn asleep(
    stage: Arc<ServerAddress>,
    session: String,
    mut ended: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let _socket = connect(&stage, &session).await?;
    Ok(ended.changed().await?)
}

/// Watches a session to its end, over all connections; gives its id and the state.
async fn view(stage: Arc<ServerAddress>, session: String, answers: bool) -> anyhow::Result<(String, Value)> {
    let (mut state, mut sent) = (Value::Null, None);
    loop {
        let mut socket = connect(&stage, &session).await?;
        // The connection may have been lost before the answer took effect. With the same key it counts once.
        if let Some(command) = &sent
            && socket.send(Message::text(Value::to_string(command))).await.is_err()
        {
            continue;
        }
        loop {
            let message = match tokio::time::timeout(SILENCE, socket.next()).await {
                Ok(Some(Ok(Message::Text(text)))) => serde_json::from_str::<Value>(&text)?,
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
                Ok(_) => break,
                Err(_) => bail!("nothing came of session `{session}` for {SILENCE:?}"),
            };
            if let Some(whole) = message.get("state") {
                state = whole.clone();
            } else if let Some(patch) = message.get("patch") {
                stage.patches.fetch_add(1, Ordering::Relaxed);
                apply(&mut state, patch)?;
            } else if message.get("end").is_some() {
                return Ok((session, state));
            }
            let question = state["prompts"].as_array().and_then(|prompts| prompts.first());
            if let Some(question) = question.filter(|_| answers) {
                let command = json!({ "type": "reply", "prompt": question["promptId"], "choice": "yes" });
                let key = format!("{session}-{}", question["promptId"]);
                let command = json!({ "command": command, "session": session, "key": key });
                let text = command.to_string();
                sent = Some(command);
                if socket.send(Message::text(text)).await.is_err() {
                    break;
                }
            }
        }
    }
}

/// As the page does it.
fn apply(state: &mut Value, patch: &Value) -> anyhow::Result<()> {
    let (Some(state), Some(patch)) = (state.as_object_mut(), patch.as_object()) else {
        bail!("a patch came before the state");
    };
    for (key, value) in patch {
        match (key.as_str(), value) {
            ("edges", _) => {}
            ("set", Value::Object(set)) => {
                let nodes = state.entry("nodes").or_insert_with(|| json!({}));
                nodes.as_object_mut().context("`nodes` is an object")?.extend(set.clone());
            }
            ("gone", _) => bail!("a live patch led backwards"),
            (_, Value::Null) => drop(state.remove(key)),
            _ => drop(state.insert(key.clone(), value.clone())),
        }
    }
    Ok(())
}

/// Compares what the viewers saw with `show`, and checks in the log that each question was answered once.
fn compare(place: &FaultSandbox, seen: &[(String, Value)]) -> anyhow::Result<()> {
    let mut shown: BTreeMap<&str, Value> = BTreeMap::new();
    for (session, state) in seen {
        if !shown.contains_key(session.as_str()) {
            let look = place.look(session)?.with_context(|| format!("no session `{session}`"))?;
            let replies = look.log.iter().filter(|envelope| envelope.event.name() == "session:reply").count();
            ensure!(replies == 1, "the question of `{session}` was answered {replies} times");
            shown.insert(session, place.run(&["show", session, "--json"])?.expect(0)?.json()?);
        }
        let show = &shown[session.as_str()];
        ensure!(show["state"] == "success", "`{session}` ended as {}", show["state"]);
        ensure!(state["session"]["state"] == show["state"], "a viewer of `{session}`: {}", state["session"]);
        for node in ["begin", "each", "ask", "last"] {
            for field in ["status", "attempts", "durationMs"] {
                let (viewer, shown) = (&state["nodes"][node][field], &show["nodes"][node][field]);
                ensure!(
                    viewer == shown,
                    "`{node}` of `{session}`: {field} is {viewer} for a viewer, {shown} for `show`"
                );
            }
        }
        ensure!(state["prompts"].as_array().is_none_or(Vec::is_empty), "an open question of `{session}`");
    }
    ensure!(seen.len() == VIEWERS - 1, "{} viewers ended", seen.len());
    Ok(())
}
