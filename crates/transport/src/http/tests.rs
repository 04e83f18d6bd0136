//! The client's own rules: proxies come from the call's environment, and nothing shows their passwords.

use super::*;

type Pairs<'a> = &'a [(&'a str, &'a str)];

fn environment(pairs: Pairs<'_>) -> Environment {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn proxies_are_those_of_the_call() {
    let rows: [(Pairs<'_>, [Option<&str>; 3]); 5] = [
        (&[], [None, None, None]),
        (&[("HTTP_PROXY", "http://a")], [None, None, None]),
        (
            &[("http_proxy", "http://a"), ("HTTPS_PROXY", "http://b"), ("NO_PROXY", "c")],
            [Some("http://a"), Some("http://b"), Some("c")],
        ),
        (&[("ALL_PROXY", "http://a")], [Some("http://a"), Some("http://a"), None]),
        (
            &[("ALL_PROXY", "http://a"), ("https_proxy", "http://b"), ("HTTPS_PROXY", "http://c")],
            [Some("http://a"), Some("http://b"), None],
        ),
    ];
    for (pairs, expected) in rows {
        let proxies = Proxies::of(&environment(pairs));
        assert_eq!([proxies.http.as_deref(), proxies.https.as_deref(), proxies.except.as_deref()], expected);
    }
}

#[test]
fn a_client_is_kept_until_the_proxies_change_and_shows_no_password() {
    let http = Http::default();
    let secret = environment(&[("https_proxy", "http://user:planted-secret@127.0.0.1:1")]);
    for environment in [Environment::default(), Environment::default(), secret] {
        assert!(http.client(&environment).is_ok());
    }
    assert!(!format!("{http:?}").contains("planted-secret"));
    let error = http.client(&environment(&[("https_proxy", "http://planted-secret:x:y")])).unwrap_err();
    let expected =
        "the environment variable https_proxy (or all_proxy) is no address of a proxy (CONFIG_INVALID)";
    assert_eq!(error.to_string(), expected);
}
