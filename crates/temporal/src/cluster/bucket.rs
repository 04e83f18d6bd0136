//! A bucket that holds the sessions of a cluster. Its credentials are in the environment, where the tools of AWS look for
//! them too.

use std::time::Duration;

use inspan_protocol::Environment;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStoreScheme, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    path::Path,
};
use url::Url;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long one request may take, with an object of many megabytes.
const REQUEST: Duration = Duration::from_secs(30);
/// How long after its first try a request is repeated: one that met a lost connection has two more tries.
const RETRY: Duration = Duration::from_secs(75);
/// How often a request is repeated. The client waits for 100 ms or longer, so that the time above ends it.
const RETRIES: usize = 200;
/// How long to wait before a request is repeated, at the most.
const PAUSE: Duration = Duration::from_secs(2);

/// Where credentials come from; without one of them the machine's own role is asked for.
const CREDENTIALS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The bucket at `s3://BUCKET/FOLDER`, and the folder in it. An error names no secret.
pub(super) fn open(url: &Url, environment: &Environment) -> Result<(AmazonS3, Path), String> {
    let get = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    if get("AWS_PROFILE").is_some() && CREDENTIALS.iter().all(|name| get(name).is_none()) {
        return Err("the files of AWS_PROFILE are not read: put the credentials into the environment, as \
                    `aws configure export-credentials --format env` prints them"
            .to_owned());
    }
    let endpoint =
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(|name| get(name));
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    if is_plain && get("AWS_ALLOW_HTTP") != Some("true") {
        return Err(
            "its endpoint begins with `http://`, which anybody on the way can read: use `https://`, or set \
                    AWS_ALLOW_HTTP=true"
                .to_owned(),
        );
    }
    // It fails only if the program has chosen one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut options = ClientOptions::new().with_connect_timeout(CONNECT).with_timeout(REQUEST);
    let proxies = if is_plain { ["http_proxy", "HTTP_PROXY"] } else { ["https_proxy", "HTTPS_PROXY"] };
    if let Some(proxy) = proxies.into_iter().chain(["all_proxy", "ALL_PROXY"]).find_map(get) {
        options = options.with_proxy_url(proxy);
    }
    if let Some(except) = ["no_proxy", "NO_PROXY"].into_iter().find_map(get) {
        options = options.with_proxy_excludes(except);
    }
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: PAUSE, ..BackoffConfig::default() },
        max_retries: RETRIES,
        retry_timeout: RETRY,
    };
    let mut builder = AmazonS3Builder::new().with_client_options(options).with_retry(retry);
    for (name, value) in
        environment.iter().filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
    {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let (_, folder) = ObjectStoreScheme::parse(url).map_err(|error| error.to_string())?;
    let bucket = builder.with_url(url.as_str()).build().map_err(|error| error.to_string())?;
    Ok((bucket, folder))
}
