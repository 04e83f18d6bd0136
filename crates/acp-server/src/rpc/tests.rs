//! What is read from a client and written to it.

use super::*;

/// The messages of these bytes, and what is written while they are read.
async fn read(input: &[u8]) -> (Vec<Incoming>, Vec<Value>) {
    let (client, mut lines) = Client::new();
    let mut messages = Messages::new(input, client);
    let mut read = Vec::new();
    while let Some(message) = messages.next().await {
        read.push(message);
    }
    drop(messages);
    let mut written = Vec::new();
    while let Some(line) = lines.recv().await {
        written.push(serde_json::from_str(&line).unwrap());
    }
    (read, written)
}

fn refusal(id: Value, code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

#[tokio::test]
async fn what_is_no_message_is_refused_and_reading_continues() {
    let ping = r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#;
    let input = format!(
        "{{\n[1]\n{{}}\n{{\"id\":7}}\n{{\"method\":1,\"id\":2}}\n{}\n\n{ping}\n",
        "x".repeat(LONGEST_LINE + 1)
    );
    let (read, written) = read(input.as_bytes()).await;
    assert_eq!(read, [Incoming::Request { id: json!("a"), method: "ping".to_owned(), params: Value::Null }]);
    let expected = [
        refusal(
            Value::Null,
            PARSE_ERROR,
            "a line is not JSON: EOF while parsing an object at line 1 column 1",
        ),
        refusal(Value::Null, INVALID_REQUEST, "a message must be one JSON object; batches are not taken"),
        refusal(Value::Null, INVALID_REQUEST, "a message needs a `method`, or the `id` of a request"),
        refusal(json!(7), INVALID_REQUEST, "a message needs a `method`, a `result` or an `error`"),
        refusal(Value::Null, INVALID_REQUEST, "a `method` is a text, and an `id` a text or a number"),
        refusal(Value::Null, PARSE_ERROR, "a line has more than 4194304 bytes"),
    ];
    assert_eq!(written, expected);
}

#[tokio::test]
async fn half_of_a_surrogate_pair_is_refused_under_the_id_of_its_request() {
    let cut = r#""params":{"text":"\ud83d"}}"#;
    let heads =
        [r#"{"id":"a","method":"x","#, r#"{"id":7,"method":"x","#, r#"{"id":7,"#, r#"{"method":"x","#];
    let input: String = heads.map(|head| format!("{head}{cut}\n")).concat();
    let (read, written) = read(input.as_bytes()).await;
    let seen: Vec<_> = written.iter().map(|refused| (&refused["id"], &refused["error"]["code"])).collect();
    let code = json!(PARSE_ERROR);
    let ids = [json!("a"), json!(7), Value::Null, Value::Null];
    assert_eq!((read, seen), (vec![], ids.iter().map(|id| (id, &code)).collect()));
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused_and_reading_continues() {
    let (read, written) = read(b"\xff\xfe\n{\"method\":\"x\",\"params\":1}\n").await;
    assert_eq!(read, [Incoming::Notification { method: "x".to_owned(), params: json!(1) }]);
    let message = "a line cannot be read: Unable to decode input as UTF8";
    assert_eq!(written, [refusal(Value::Null, PARSE_ERROR, message)]);
}

#[tokio::test]
async fn a_line_behind_a_refused_one_is_read_also_if_nothing_comes_after_it() {
    for refused in [vec![b'x'; LONGEST_LINE + 1], b"\xff\xfe".to_vec()] {
        // The input stays open.
        let (mut editor, input) = tokio::io::duplex(2 * LONGEST_LINE);
        editor.write_all(&[&refused[..], b"\n{\"method\":\"x\",\"params\":1}\n"].concat()).await.unwrap();
        let (client, _lines) = Client::new();
        let mut messages = Messages::new(input, client);
        let read = tokio::time::timeout(std::time::Duration::from_secs(20), messages.next()).await;
        assert_eq!(read.unwrap(), Some(Incoming::Notification { method: "x".to_owned(), params: json!(1) }));
    }
}

#[tokio::test]
async fn an_answer_reaches_the_one_who_asked() {
    let (client, mut lines) = Client::new();
    let (asker, other) = (client.clone(), client.clone());
    let asked = tokio::spawn(async move { asker.call("one", json!({})).await });
    let question: Value = serde_json::from_str(&lines.recv().await.unwrap()).unwrap();
    assert_eq!(question, json!({ "jsonrpc": "2.0", "id": 0, "method": "one", "params": {} }));
    let input = b"{\"id\":9,\"result\":1}\n{\"id\":0,\"error\":{\"code\":-5,\"message\":\"no\"}}\n";
    assert_eq!(Messages::new(&input[..], other).next().await, None);
    assert_eq!(asked.await.unwrap(), Err(RpcError::new(-5, "no")));
}

#[tokio::test]
async fn a_question_that_nobody_waits_for_is_withdrawn() {
    let (client, mut lines) = Client::new();
    {
        let call = client.call("one", json!({}));
        futures::pin_mut!(call);
        assert!(futures::poll!(&mut call).is_pending());
    }
    let _question = lines.recv().await.unwrap();
    let withdrawn: Value = serde_json::from_str(&lines.recv().await.unwrap()).unwrap();
    let params = json!({ "requestId": 0 });
    assert_eq!(withdrawn, json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": params }));
    assert!(client.open.lock().is_empty());
}
