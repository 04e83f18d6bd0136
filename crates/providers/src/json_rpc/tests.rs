//! The codec over bytes cut anywhere, and the peer over small shell programs.

use futures::FutureExt;
use inspan_protocol::Redactor;
use inspan_testkit::split_everywhere;
use proptest::prelude::*;

use super::*;

fn shown(message: &Incoming) -> String {
    match message {
        Incoming::Answer { id, result: Ok(value) } => format!("{id} = {value}"),
        Incoming::Answer { id, result: Err(error) } => format!("{id} ! {} {}", error.code, error.message),
        Incoming::Request { id, method, params } => format!("{} ? {method} {params}", id.0),
        Incoming::Notification { method, params } => format!("{method} {params}"),
        Incoming::Invalid(what) => format!("odd: {what}"),
    }
}

#[test]
fn messages_do_not_depend_on_where_a_read_ends() {
    let bytes = concat!(
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#,
        "\n",
        r#"{"id":2,"error":{"code":-32000,"message":"no","data":{"x":1}}}"#,
        "\nnot json\n",
        r#"{"method":"turn/started","params":{"é":[]}}"#,
        "\r\n\n",
        r#"{"method":"ask","id":"q-1","params":null}"#,
        "\n",
        r#"{"method":"bare"}"#,
        "\n",
        r#"{"id":"x","result":1}"#,
        "\n[1]\n",
        r#"{"id":4,"error":{"code":"-1","message":"odd"}}"#,
        "\n",
        r#"{"id":5,"error":"odd"}"#,
        "\n",
        r#"{"id":3,"result":null,"error":null}"#,
    );
    let expected = [
        r#"1 = {"a":1}"#,
        "2 ! -32000 no",
        "odd: a line is not a message of the protocol",
        r#"turn/started {"é":[]}"#,
        r#""q-1" ? ask null"#,
        "bare null",
        "odd: an answer names a request that was never made",
        "odd: a line is not a message of the protocol",
        "4 ! -32700 the program answered with an error that cannot be read",
        "5 ! -32700 the program answered with an error that cannot be read",
        "3 = null",
    ];
    for split in split_everywhere(bytes.as_bytes(), 0..20) {
        let mut codec = Codec::default();
        let mut seen = Vec::new();
        split.chunks.iter().for_each(|chunk| codec.push(chunk, |message| seen.push(shown(&message))));
        codec.finish(|message| seen.push(shown(&message)));
        assert_eq!(seen, expected, "{}", split.name);
    }
}

proptest! {
    #[test]
    fn no_line_stops_the_codec(junk in any::<Vec<u8>>()) {
        let mut codec = Codec::default();
        codec.push(&junk, |_| {});
        codec.push(b"\n{\"id\":1,\"result\":2}\n", |_| {});
        let mut last = String::new();
        codec.push(b"{\"id\":7,\"result\":2}\n", |message| last = shown(&message));
        prop_assert_eq!(last, "7 = 2");
    }
}

fn peer(script: &str) -> Peer {
    Peer::start(
        Start {
            program: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            environment: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
            cwd: None,
            supervisor: None,
        },
        Redactor::default(),
    )
    .now_or_never()
    .unwrap()
    .unwrap()
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_call_gets_its_own_answer_and_loses_nothing_else() {
    let mut peer = peer(
        r#"read first; echo '{"method":"before"}'; echo '{"id":9,"method":"ask"}'; echo '{"id":1,"result":[5]}'
           echo '{"method":"after"}'; read second; echo "{\"id\":2,\"result\":$second}""#,
    );
    let mut asked = Vec::new();
    let keep = |stdin: &Stdin, message: Incoming| match message {
        Incoming::Request { id, method, .. } => {
            asked.push(method);
            respond(stdin, &id, "yes").unwrap();
            None
        }
        other => Some(other),
    };
    let answer: Vec<u32> = peer.call("open", json!({ "deep": true }), LONG, keep).await.unwrap();
    assert_eq!((answer, asked), (vec![5], vec!["ask".to_owned()]));
    let mut seen = Vec::new();
    while let Some(message) = peer.next().await {
        seen.push(shown(&message));
    }
    assert_eq!(
        seen,
        ["before null", "after null", r#"2 = {"id":9,"jsonrpc":"2.0","result":"yes"}"#].map(str::to_owned)
    );
}

#[tokio::test]
async fn every_way_of_not_answering_is_reported() {
    let call = |script: &'static str, limit| async move {
        let mut peer = peer(script);
        match peer.call::<u32>("m", json!({}), limit, |_, _| None).await {
            Ok(value) => format!("{value}"),
            Err(CallError::Refused(error)) => format!("refused {} {}", error.code, error.message),
            Err(CallError::Ended) => "ended".to_owned(),
            Err(CallError::Late) => "late".to_owned(),
            Err(CallError::Failed(error)) => error.to_string(),
        }
    };
    assert_eq!(call(r#"read a; echo '{"id":1,"result":4}'"#, LONG).await, "4");
    assert_eq!(
        call(r#"read a; echo '{"id":1,"error":{"code":-32601,"message":"no m"}}'"#, LONG).await,
        "refused -32601 no m"
    );
    assert_eq!(call("read a; exit 3", LONG).await, "ended");
    assert_eq!(call("sleep 60", Duration::from_millis(50)).await, "late");
    // The value there may be a secret.
    assert_eq!(
        call(r#"read a; echo '{"id":1,"result":"planted"}'"#, LONG).await,
        "the answer to `m` does not fit: at column 9 of 9 bytes (PROTOCOL)"
    );
}
