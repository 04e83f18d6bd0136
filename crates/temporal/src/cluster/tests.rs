//! Addresses, and buckets of which one cannot be used.

use inspan_protocol::{Environment, Timestamp};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{Cluster, EngineError, LONGEST_HISTORY, VERY_LONG_HISTORY, alive_since, may_begin};
use crate::log::{Segment, Writer};

fn refused(address: &str) -> String {
    match address.parse::<Cluster>() {
        Err(EngineError::Address { why, .. }) => why,
        other => panic!("{address} gives {other:?}"),
    }
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn clocks_that_differ_hide_no_worker() {
    // One asked just now by the server's clock, one half a minute ago, and one has been gone for two minutes.
    let seen = [1_000_000, 999_970, 999_880];
    for ahead in [-3_600, -90, 0, 90, 119] {
        let alive = alive_since(&seen, Timestamp::from_millis((1_000_000 + ahead) * 1_000));
        assert_eq!(seen.map(|at| at >= alive), [true, true, false], "{ahead}");
    }
    // All are gone.
    let alive = alive_since(&seen, Timestamp::from_millis((1_000_000 + 211) * 1_000));
    assert_eq!(seen.map(|at| at >= alive), [false; 3]);
}

#[test]
fn sessions_are_in_a_folder_or_a_bucket() {
    for sessions in ["/srv/inspan", "file:///srv/inspan", "s3://bucket", "s3://bucket/a/b"] {
        let cluster = format!("temporal://host?sessions={sessions}").parse::<Cluster>();
        assert!(cluster.is_ok(), "{sessions}: {cluster:?}");
    }
    let why = refused("temporal://host?sessions=gs://bucket");
    assert_eq!(
        why,
        "`sessions` has the form `gs:`: there are `/FOLDER`, `file:///FOLDER` and `s3://BUCKET/FOLDER`"
    );
    let why = refused("temporal://host?sessions=s3://me:planted@bucket");
    assert_eq!(why, "the credentials and the endpoint of a bucket belong into the environment");
    refused("temporal://host?sessions=here");
    let why = refused("temporal://host?sessions=s3://bucket&sessions=/srv/inspan");
    assert_eq!(why, "it has the option `sessions` twice");
}

#[test]
fn what_an_address_cannot_mean_is_refused() {
    assert_eq!(refused("temporal://host?sessions=/a&queue="), "`queue` names no queue");
    let why = refused("temporal://host?sessions=/a&tls=maybe");
    assert_eq!(why, "`tls` takes no value: leave it out to connect without TLS");
    assert!("temporal://host?sessions=/a&tls".parse::<Cluster>().is_ok());
    let error = "temporal://me:planted@host?sessions=/a".parse::<Cluster>().unwrap_err().to_string();
    assert!(error.contains("TEMPORAL_API_KEY") && !error.contains("planted"), "{error}");
}

#[test]
fn settings_of_a_bucket_that_cannot_work_are_refused() {
    let cluster: Cluster = "temporal://host?sessions=s3://bucket/a".parse().unwrap();
    let refused = |variables: &[(&str, &str)]| match cluster.log(&environment(variables)) {
        Err(EngineError::Sessions { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&[("AWS_PROFILE", "team")]).starts_with("the files of AWS_PROFILE are not read"));
    let plain = ("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    assert!(refused(&[plain, ("AWS_ACCESS_KEY_ID", "id")]).starts_with("its endpoint begins with `http://`"));
    let half = refused(&[("AWS_ACCESS_KEY_ID", "planted-id")]);
    assert!(half.contains("SecretAccessKey") && !half.contains("planted"), "{half}");
}

#[test]
fn a_key_is_named_and_never_shown() {
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let error = format!("temporal://host?sessions=/a&key={key}").parse::<Cluster>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "`temporal://host` is not an engine: `key` takes the names of environment variables that hold keys, such as \
         `key=INSPAN_LOG_KEY`"
    );
    let cluster: Cluster = "temporal://host?sessions=s3://a&key=NEW,OLD".parse().unwrap();
    assert_eq!(cluster.key_variables(), ["NEW", "OLD"]);
    let log = |old| cluster.log(&environment(&[("NEW", key), ("OLD", old)]));
    assert!(log(key).is_ok());
    assert_eq!(
        log("").unwrap_err().to_string(),
        "the environment variable OLD, which `key` in the engine's address names, is not set"
    );
    assert_eq!(
        log("planted").unwrap_err().to_string(),
        "the environment variable OLD, which `key` in the engine's address names, holds no key, which is 32 bytes in base64: \
         make one with `openssl rand -base64 32`"
    );
}

#[test]
fn the_address_of_the_compose_file_is_one() {
    let compose = include_str!("../../../../examples/fleet/compose.yml");
    let address = compose.lines().find_map(|line| line.trim().strip_prefix("INSPAN_ENGINE: ")).unwrap();
    let cluster: Cluster = address.parse().unwrap();
    assert_eq!(cluster.key_variables(), ["INSPAN_LOG_KEY"]);
}

#[test]
fn a_session_begins_nodes_until_shortly_before_the_limit_of_the_server() {
    let rows = [
        (VERY_LONG_HISTORY - 1, false, true),
        (VERY_LONG_HISTORY, true, true),
        // It was recorded by a version that began nothing from here on.
        (VERY_LONG_HISTORY, false, false),
        (LONGEST_HISTORY - 1, true, true),
        (LONGEST_HISTORY, true, false),
    ];
    for (history, goes_on, begins) in rows {
        assert_eq!(may_begin(history, || goes_on), begins, "{history} {goes_on}");
    }
}

/// The answers of a server that repeats what it was sent.
async fn bucket(answer: &'static str) -> (Cluster, Environment) {
    bucket_after(0, answer).await
}

/// The same; it has a fault for so many requests before.
async fn bucket_after(faults: usize, answer: &'static str) -> (Cluster, Environment) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://me:planted-word@{}", server.local_addr().unwrap());
    tokio::spawn(async move {
        let mut served = 0;
        while let Ok((mut client, _)) = server.accept().await {
            let answer = if served < faults { "503 Slow Down" } else { answer };
            served += 1;
            tokio::spawn(async move {
                let mut request = vec![0; 64 * 1024];
                let mut length = 0;
                while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
                    match client.read(&mut request[length..]).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => length += read,
                    }
                }
                let sent = String::from_utf8_lossy(&request[..length]).into_owned();
                let body =
                    format!("<Error><Code>Refused</Code><Message>no</Message><Sent>{sent}</Sent></Error>");
                let head =
                    format!("HTTP/1.1 {answer}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
                let _gone = client.write_all(format!("{head}ETag: \"1\"\r\n\r\n{body}").as_bytes()).await;
            });
        }
    });
    let cluster = "temporal://host?sessions=s3://bucket/a".parse().unwrap();
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "planted-id"),
        ("AWS_SECRET_ACCESS_KEY", "planted-secret"),
        ("AWS_SESSION_TOKEN", "planted-token"),
    ];
    (cluster, environment(&variables))
}

#[tokio::test]
async fn a_bucket_that_replaces_objects_is_refused() {
    let (cluster, environment) = bucket("200 OK").await;
    let log = cluster.log(&environment).unwrap();
    let error = cluster.check(&log).await.unwrap_err().to_string();
    assert!(error.contains("it replaced a/stored-once although the request forbids that"), "{error}");
    let error =
        log.append(&"s".into(), &Segment::new(Writer::Decider, Default::default())).await.unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("the shared log cannot be used: it replaced"), "{error}");
}

#[tokio::test]
async fn a_bucket_with_a_fault_is_asked_again_for_some_time() {
    let (cluster, environment) = bucket_after(6, "403 Forbidden").await;
    let log = cluster.log(&environment).unwrap();
    let error = cluster.check(&log).await.unwrap_err().to_string();
    assert!(error.ends_with("403 Forbidden: Refused: no"), "{error}");
}

#[tokio::test]
async fn no_secret_is_in_an_error() {
    let (cluster, environment) = bucket("403 Forbidden").await;
    let log = cluster.log(&environment).unwrap();
    let error = cluster.check(&log).await.unwrap_err();
    let texts = [error.to_string(), format!("{error:?}"), format!("{log:?}"), format!("{cluster:?}")];
    assert!(texts[0].ends_with("403 Forbidden: Refused: no"), "{}", texts[0]);
    for text in texts {
        assert!(!text.contains("planted"), "{text}");
    }
}
