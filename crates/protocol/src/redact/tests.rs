//! What is replaced and what is not, in every form and in pieces.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn of(variables: &[(&str, &str)]) -> Redactor {
    let env: Environment =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Redactor::new(&env)
}

/// Variables whose values are secrets, by the classes of their names.
const SECRETS: &[(&str, &str)] = &[
    ("ANTHROPIC_API_KEY", "planted-secret-1"),
    ("API_KEY_PROD", "apikeyprod-666666"),
    ("AUTH", "auth-aaaaaaaaa"),
    ("AUTHORIZATION", "authorization-ffffff"),
    ("AWS_ACCESS_KEY_ID", "AKIAABCDEFGHIJKLMNOP"),
    ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("COOKIE", "cookie-88888888"),
    ("DB_PASS", "dbpass-333333"),
    ("GITHUB_PAT", "plain-pat-123456"),
    ("GOOGLE_CREDENTIALS", "cred-55555555"),
    ("KEYFILE_PASSPHRASE", "pass-dddddd"),
    ("MYSQL_PWD", "mysqlpwd-999999"),
    ("MY_TOKEN", "ab\"cd\\ef/gh<i>&jklmno"),
    ("NPM_CONFIG__AUTH", "npmauth-bbbbbb"),
    ("OAUTH_CODE", "oauth-cccccc"),
    ("OPENAI_APIKEY", "apikey-7777777"),
    ("PGPASSWORD", "pg-pass-word-123"),
    ("SESSION_SECRET", "supersecretvalue"),
    ("SMTP_PASSWD", "pw-4444444444"),
    ("UNI_SECRET", "pässwörd-Ünïcode-🐂-12345"),
    ("WORD_PASSWORD", "letmeinnow"),
];

#[test]
fn variables_with_secret_names_are_replaced_by_their_names() {
    let redactor = of(SECRETS);
    for (name, value) in SECRETS {
        let expected = format!("it is [redacted {name}], yes");
        assert_eq!(redactor.text(&format!("it is {value}, yes")), expected, "{name}");
    }
    assert_eq!(format!("{redactor:?}"), format!("Redactor({} secrets)", SECRETS.len()));
}

#[test]
fn what_is_no_secret_is_never_changed() {
    let harmless = [
        ("AUTH_MODE", "production"),
        ("COOKIE_DOMAIN", "example-site.com"),
        ("DB_PASSWORD", "postgres"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/dev/account.json"),
        ("HOME", "/home/dev/plain"),
        ("MAX_TOKENS", "100000000"),
        ("MY_KEY", "customer_id"),
        ("OLDPWD", "/srv-of-mine/plain"),
        ("PARTITION_KEY", "timestamp"),
        ("PUBLIC_KEY", "ssh-ed25519-AAAA-1234567890"),
        ("PWD", "/srv-of-mine/plain"),
        ("SHORT_KEY", "fake"),
        ("SORT_KEY", "created-at-2"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-1/agent.1"),
        ("TOKEN_URL", "https://example.org/token/path"),
    ];
    let redactor = of(&harmless);
    for (name, value) in harmless {
        let text = format!("{name}={value} {{\"{value}\": 5}}");
        assert_eq!(redactor.text(&text), text);
    }
    assert_eq!(format!("{redactor:?}"), "Redactor(0 secrets)");
    let texts = [
        "task-abcdefghijkl and sk-1 and sk-learn-is-a-library-for-learning",
        "the bearer token, Basic authentication-required, the basic understanding",
        "the basic src/utils/base64_helper.rs module, rm -rf basic /tmp/a/project-2024-data bearer project-2024-data",
        "the bearer src/utils/base64encoding/helper.rs and /srv/someone1990/Projects/Basic",
        "look for -----BEGIN PRIVATE KEY-----\nIt must be there. VERDICT: PASS\nPASS of src/main/java/org/example1/SomeFactoryOfFactories",
        "echo ok # -----BEGIN PRIVATE KEY-----\ntouch PWNED\n/srv/someone/Projects/project-1/deploy\nreboot",
        "curl -s http://127.0.0.1:5902|sh;@github.com/team/repo.git",
        "x -----BEGIN PRIVATE KEY----- MII DROP TABLE ORDERS; DELETE FROM CUSTOMERS; /BIN/RM -RF /USERS/ME",
        "ghp_short, AKIA, eyJ, -----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        "https://example.org:8080/a@b postgres://user:$PASSWORD@db user@host:port http://a:b@c",
        "commit 7936c1f0b2a34d5e6f7a8b9c0d1e2f3a4b5c6d7e of 2026-11-22",
    ];
    assert_eq!(texts.map(|text| redactor.text(text)), texts);
}

#[test]
fn a_value_that_looks_like_a_word_is_replaced_only_as_a_whole_word() {
    let redactor = of(&[("WORD_PASSWORD", "letmeinnow")]);
    assert_eq!(redactor.text("letmeinnow, letmeinnowhere"), "[redacted WORD_PASSWORD], letmeinnowhere");
    let escaped = "a%20letmeinnow%ff b%41letmeinnow, %c3%b6letmeinnow %C3letmeinnow%C3";
    let expected =
        "a%20[redacted WORD_PASSWORD]%ff b%41letmeinnow, %c3%b6letmeinnow %C3[redacted WORD_PASSWORD]%C3";
    assert_eq!(redactor.text(escaped), expected);
}

#[test]
fn tokens_of_known_shapes_are_replaced_whoever_set_them() {
    let rows = [
        ("it was sk-ant-api03-abcdefgh0!", "it was [redacted]!"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "[redacted]"),
        ("x=github_pat_11ABCDEFG0_abcdefgh;", "x=[redacted];"),
        ("xoxb-123456789012-abc", "[redacted]"),
        ("AKIAABCDEFGHIJKLMNOP AKIAABCDEFGHIJKLMNOPQ", "[redacted] AKIAABCDEFGHIJKLMNOPQ"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstu", "[redacted]"),
        ("a eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2lnbmF0dXJl.", "a [redacted]."),
        ("Authorization: Bearer abc.def.0123456789, then", "Authorization: Bearer [redacted], then"),
        ("sk_live_51H8abcdefghijk", "[redacted]"),
        ("postgres://user:hunter2hunter2@db/x", "postgres://user:[redacted]@db/x"),
        ("https://u:hunter&2hunter@h/", "https://u:[redacted]&[redacted]@h/"),
        ("https://u:hunter2@h|sh;@github.com/", "https://u:[redacted]@h|sh;@github.com/"),
        ("https://u:hunter2|sh;@github.com/", "https://u:[redacted]|sh;@github.com/"),
        ("Authorization: Basic dXNlcjpodW50ZXIy, then", "Authorization: Basic [redacted], then"),
        ("cut: basic OnBlcnNvbmFsLWFjY2Vzc", "cut: basic [redacted]"),
        // `key-1234:`, as of services whose key is the user, and a login that `echo` has ended with a line.
        ("Basic a2V5LTEyMzQ6 Basic dXNlcjpodW50ZXIyMjMK", "Basic [redacted] Basic [redacted]"),
        ("postgres://app:S3cr@t&More99Long@db/x", "postgres://app:[redacted]&[redacted]@db/x"),
        ("mysql://root:123456&654321@db/x", "mysql://root:[redacted]&[redacted]@db/x"),
        ("Bearer abcd1234-efgh5678-ijkl9012-mnop", "Bearer [redacted]"),
        ("Bearer acme/3f9a1c5d7e2b4a6c8d0e1f2a3b4c5d6e", "Bearer [redacted]"),
        (
            r"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\/kqhkiG\u002Bw0B\n-----END",
            r"-----BEGIN PRIVATE KEY-----\n[redacted]\n-----END",
        ),
        ("Bearer q0/tX3LmZ9+Kp7VbN2RwYQ==", "Bearer [redacted]"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\\nMIIE\\nvQIB\\n-----END RSA PRIVATE KEY-----, done",
            "-----BEGIN RSA PRIVATE KEY-----\\n[redacted]\\n[redacted]\\n-----END RSA PRIVATE KEY-----, done",
        ),
        (
            "cut: -----BEGIN PRIVATE KEY-----\nMIIE; then",
            "cut: -----BEGIN PRIVATE KEY-----\n[redacted]; then",
        ),
    ];
    let redactor = Redactor::default();
    for (text, expected) in rows {
        assert_eq!(redactor.text(text), expected);
        assert_eq!(redactor.known(text), text);
    }
}

/// A line of a private key.
const LINE: &str = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtz";

#[test]
fn the_lines_of_a_private_key_are_replaced_however_they_are_shown() {
    let lines = |line: &str, last: &str| {
        [
            format!("-----BEGIN PRIVATE KEY-----\n{line}\n{line}\n{last}==\n-----END PRIVATE KEY-----\nDone"),
            format!("-----BEGIN PRIVATE KEY-----\r\n  {line}\r\n  {line}\r\n  {last}"),
            format!("    1→-----BEGIN PRIVATE KEY-----\n    2→{line}\n    3→{line}\n   14→{last}\n   15→\n"),
            format!("-\"-----BEGIN PRIVATE KEY-----\\n\" +\n-\"{line}\\n\" +\n-\"{line}\\n\" + '{last}\\n';"),
            format!(
                "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B2C3D4E5F\n\n{line}\n{line}\n{last}"
            ),
        ]
    };
    let redactor = Redactor::default();
    for (text, expected) in lines(LINE, "tZW1AbC/x").iter().zip(lines("[redacted]", "[redacted]")) {
        assert_eq!(redactor.text(text), expected);
    }
}

#[test]
fn a_secret_is_found_in_its_usual_encodings() {
    let secret = "ab\"cd\\ef/gh<i>&jklmnö";
    let redactor = of(&[("MY_TOKEN", secret)]);
    let json = serde_json::to_string(secret).unwrap();
    let twice = serde_json::to_string(&json).unwrap();
    let thrice = serde_json::to_string(&twice).unwrap();
    let rows = [
        (json, "\"[redacted MY_TOKEN]\""),
        (twice, "\"\\\"[redacted MY_TOKEN]\\\"\""),
        (thrice, r##""\"\\\"[redacted MY_TOKEN]\\\"\"""##),
        ("ab\\\"cd\\\\ef/gh<i>&jklmn\\u00f6".to_owned(), "[redacted MY_TOKEN]"),
        ("q=ab%22cd%5Cef%2Fgh%3Ci%3E%26jklmn%C3%B6&r=1".to_owned(), "q=[redacted MY_TOKEN]&r=1"),
        // What `/`, letters and digits of escapes look like is up to who writes the URL.
        ("%zz/ab%22cd%5cef/gh%3ci%3e%26jklmn%c3%b6%20%6f".to_owned(), "%zz/[redacted MY_TOKEN]%20%6f"),
        ("100% of %61b\"cd\\ef/gh<i>&jklmnö%".to_owned(), "100% of [redacted MY_TOKEN]%"),
    ];
    for (text, expected) in rows {
        assert_eq!(redactor.text(&text), expected);
    }
    // What else than JSON needs is escaped, and how, differs from writer to writer; so does JSON in JSON.
    let go = r#"{"u":"ab\"cd\\ef/gh\u003ci\u003e\u0026jklmn\u00f6"}"#;
    let php = r#"{"u":"ab\"cd\\ef\/gh<i>&jklmn\u00F6"}"#;
    let gson = r#"{"u":"\u0061b\u0022cd\u005Cef/gh\u003Ci\u003e&jklmn\u00F6"}"#;
    for text in [go, php, gson] {
        let mut text = text.to_owned();
        for _ in 0..3 {
            let redacted = redactor.text(&text);
            assert!(redacted.contains("\"[redacted MY_TOKEN]"), "{text}: {redacted}");
            assert!(!redacted.contains("jklmn"), "{text}: {redacted}");
            text = serde_json::to_string(&text).unwrap();
        }
    }
    let lone = r"\ud83d ab\u0022cd\\ef\/gh<i>&jklmn\u00f6\u00 \ud83d\u0041 \x \";
    assert_eq!(redactor.text(lone), r"\ud83d [redacted MY_TOKEN]\u00 \ud83d\u0041 \x \");
    let of_a_url = of(&[("DATABASE_TOKEN", "postgres/u:p%40ss/🐂/w\\nrd")]);
    for text in [r"postgres\/u:p%40ss\/\ud83d\uDC02/w\\nrd", r"postgres%2Fu:p%2540ss/🐂/w%5Cnrd"] {
        assert_eq!(of_a_url.text(&format!("\"{text}\"")), "\"[redacted DATABASE_TOKEN]\"");
    }
    let redactor = of(&[("MY_TOKEN", "plantedtoken-abcdef-42")]);
    let spaces = of(&[("MY_TOKEN", "correct horse/42 + staple")]);
    for text in
        ["correct+horse%2F42+%2B+staple", "correct%20horse/42%20+%20staple", "correct+horse/42+++staple"]
    {
        assert_eq!(spaces.text(&format!("q={text}&r=1")), "q=[redacted MY_TOKEN]&r=1");
    }
    // `printf %s "$MY_TOKEN" | base64`, `echo "$MY_TOKEN" | base64`, and as the password of Basic authorization.
    let rows = [
        ("cGxhbnRlZHRva2VuLWFiY2RlZi00Mg==", "[redacted MY_TOKEN]g=="),
        ("cGxhbnRlZHRva2VuLWFiY2RlZi00Mgo=", "[redacted MY_TOKEN]go="),
        ("dTpwbGFudGVkdG9rZW4tYWJjZGVmLTQy", "dTp[redacted MY_TOKEN]"),
    ];
    for (text, expected) in rows {
        assert_eq!(redactor.text(text), expected);
    }
    // The shortest secret too, wherever it begins.
    let short = of(&[("MY_TOKEN", "Xk9q2LmZ")]);
    for (text, expected) in [
        ("WGs5cTJMbVo=", "[redacted MY_TOKEN]o="),
        ("dXNlcjpYazlxMkxtWg==", "dXNlcjp[redacted MY_TOKEN]g=="),
        ("dTpYazlxMkxtWg==", "dTp[redacted MY_TOKEN]g=="),
        ("YWI6WGs5cTJMbVo=", "YWI6[redacted MY_TOKEN]o="),
    ] {
        assert_eq!(short.text(text), expected);
    }
    // In lines as `base64`, PEM and a block of YAML have them.
    let whole = format!("{}cGxhbnRlZHRva2VuLWFiY2RlZi00Mg{}", "dnZ2".repeat(13), "d3d3".repeat(13));
    let redacted = |text: String| redactor.text(&text).replace(['\r', '\n', ' '], "");
    let expected = redacted(whole.clone());
    assert!(expected.contains("[redactedMY_TOKEN]"), "{expected}");
    for (length, between) in [(76, "\n"), (64, "\r\n"), (20, "\n    "), (12, "\n"), (8, "\n")] {
        let lines: Vec<_> = whole.as_bytes().chunks(length).map(String::from_utf8_lossy).collect();
        assert_eq!(redacted(lines.join(between)), expected, "{length}");
        let json = serde_json::to_string(&lines.join(between)).unwrap();
        let redacted = redactor.text(&json);
        assert!(redacted.contains("[redacted MY_TOKEN]"), "{length}: {redacted}");
    }
}

#[test]
fn variables_of_several_parts_are_learned_part_by_part() {
    let redactor = of(&[
        ("ANTHROPIC_CUSTOM_HEADERS", "X-One: header-value-1\nAuthorization: Token header-value-2"),
        ("DATABASE_URL", "postgres://user:hunter2hunter2@db/x"),
        ("OTHER_URL", "postgres://user:hunter%332hunter%40@db/x"),
        ("GOOGLE_CREDENTIALS", "{\"type\": \"service_account\", \"privateKey\": \"inner-key-123\"}"),
        ("OTEL_HEADERS", "x-team=team-value-3,x-other=other-value-4, login=Basic%20login%2Bvalue-5"),
        ("PEM_KEY", "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n-----END KEY-----"),
    ]);
    let text = "header-value-1 header-value-2 hunter2hunter2 hunter32hunter@ inner-key-123 team-value-3 other-value-4 login+value-5 service_account \
                MIIEvQIBADANBgkqhkiG9w0BAQ";
    let expected = "[redacted ANTHROPIC_CUSTOM_HEADERS] [redacted ANTHROPIC_CUSTOM_HEADERS] [redacted DATABASE_URL] [redacted OTHER_URL] \
                    [redacted GOOGLE_CREDENTIALS] [redacted OTEL_HEADERS] [redacted OTEL_HEADERS] [redacted OTEL_HEADERS] service_account \
                    [redacted PEM_KEY]";
    assert_eq!(redactor.text(text), expected);
}

#[test]
fn each_line_of_a_secret_is_one_and_what_is_cut_leaves_no_part_of_one() {
    let key = "-----BEGIN KEY-----\nAq83nDk2xx\n  second-Zm39Lq0x\nshort\n-----END KEY-----";
    let redactor = of(&[("SERVICE_KEY", key)]);
    assert_eq!(
        redactor.text("Aq83nDk2xx, second-Zm39Lq0x"),
        "[redacted SERVICE_KEY], [redacted SERVICE_KEY]"
    );
    let same = "short -----BEGIN KEY----- -----END KEY-----";
    assert_eq!(redactor.text(same), same);
    let text = "key: abcdefgh1, \"🐂\" ijklmnop2";
    let beginnings = [4, 12, 14, 17, 30, 99].map(|most| beginning(text, most));
    let short = "key: abcdefgh1, \"🐂\"";
    assert_eq!(beginnings, ["key:", "key:", "key: abcdefgh1", "key: abcdefgh1, ", short, text]);
    let endings = [4, 9, 10, 13, 99].map(|most| ending(text, most));
    assert_eq!(endings, ["", "ijklmnop2", " ijklmnop2", "\" ijklmnop2", text]);
    assert_eq!((beginning("abcdefgh1", 4), ending("abcdefgh1", 4)), ("", ""));
}

#[test]
fn what_is_marked_is_a_secret_whatever_it_is_called() {
    let hook = "http://127.0.0.1/services/T0/zzTop";
    let env: Environment =
        [("DEPLOY", "blue-42"), ("STAGE", "production"), ("HOOK", hook), ("PIN", "98765432101")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into_iter()
            .collect();
    let redactor = Redactor::new(&env.clone().mark(["DEPLOY", "STAGE", "HOOK", "PIN"]))
        .with_values(["another-value-1".to_owned()]);
    assert_eq!(
        redactor.text("to blue-42 in production by another-value-1"),
        "to [redacted DEPLOY] in production by [redacted]"
    );
    // Its owner knows better what it is than its form says.
    assert_eq!(redactor.text(&format!("{hook} 98765432101")), "[redacted HOOK] [redacted PIN]");
    let given =
        json!({ "pin": 98765432101_u64, "list": [1, 98765432101.0, 98765432102_u64], "text": "98765432101" });
    let pin = "[redacted PIN]";
    let expected = json!({ "pin": pin, "list": [1, 98765432101.0, 98765432102_u64], "text": pin });
    assert_eq!(redactor.value(given.clone()), expected);
    assert_eq!(Redactor::new(&env).value(given.clone()), given, "a number is no secret that nobody names");
}

#[test]
fn what_is_withheld_is_a_secret_that_nobody_gets() {
    let env: Environment = [("SERVER", "key-of-a-server"), ("KEPT", "kept")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
    let seen = env
        .withhold(|name| name == "SERVER")
        .with("MORE", "more")
        .mark(["MORE"])
        .without(|name| name == "MORE");
    assert_eq!(seen.iter().collect::<Vec<_>>(), [("KEPT", "kept")]);
    assert_eq!(Redactor::new(&seen).text("kept key-of-a-server"), "kept [redacted SERVER]");
}

#[test]
fn what_options_give_to_programs_and_servers_is_known_by_its_names() {
    let env: Environment = [("ELSEWHERE", "value-of-elsewhere")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
    let servers = json!({
        "flow": { "command": "s", "args": ["argument-1"], "env": { "A_TOKEN": "planted-a", "MODE_OF_A": "harmless-a", "B_KEY": "${ELSEWHERE}" } },
        "claude": { "type": "http", "headers": { "Authorization": "Bearer planted-c", "X-Api-Key": "planted-d", "Accept": "application/json" } },
        "opencode": { "type": "local", "environment": { "E_TOKEN": "planted-e", "F_TOKEN": "{env:ELSEWHERE}", "G_TOKEN": "${UNSET_NAME}" } },
        "codex": { "url": "u", "http_headers": { "X-Token": "planted-h" }, "env": ["H_TOKEN"] },
    });
    let options = json!({ "env": { "I_TOKEN": "planted-i" }, "config": { "mcp_servers": { "s": { "env": { "J_TOKEN": "planted-j" } } } }, "mcpServers": servers });
    let redactor = Redactor::of_call(
        &env,
        &json!({ "prompt": { "env": { "P_TOKEN": "of-the-prompt" } }, "options": options }),
    );
    let secrets = "planted-a value-of-elsewhere planted-c planted-d planted-e planted-h planted-i planted-j";
    let names =
        ["A_TOKEN", "B_KEY", "Authorization", "X-Api-Key", "E_TOKEN", "X-Token", "I_TOKEN", "J_TOKEN"];
    let expected = names.map(|name| format!("[redacted {name}]")).join(" ");
    assert_eq!(redactor.text(secrets), expected);
    let harmless = "argument-1 harmless-a application/json ${UNSET_NAME} ${ELSEWHERE} of-the-prompt";
    assert_eq!(redactor.text(harmless), harmless);
    assert_eq!(Redactor::of_call(&env, &json!("no input")).text(secrets), secrets);
}

#[test]
fn secrets_of_options_go_also_as_they_are_written() {
    let env: Environment = [("SET".to_owned(), "value-of-set".to_owned())].into_iter().collect();
    let options = json!({
        "env": {
            "A_TOKEN": "planted${no}-a", "B_TOKEN": "planted${SET}-b", "C_TOKEN": "${SET:-planted-c}",
            "D_TOKEN": "${SET}", "E_TOKEN": "planted{env:no}-e", "F_TOKEN": "${no}${SET}",
        },
        "headers": { "Authorization": "Bearer planted${no}-g", "X-Token": "Bearer ${no}" },
    });
    let redactor = Redactor::of_call(&env, &json!({ "prompt": "p", "options": options }));
    let secrets = "planted${no}-a planted${SET}-b plantedvalue-of-set-b ${SET:-planted-c} planted{env:no}-e planted${no}-g";
    let names = ["A_TOKEN", "B_TOKEN", "B_TOKEN", "C_TOKEN", "E_TOKEN", "Authorization"];
    let expected = names.map(|name| format!("[redacted {name}]")).join(" ");
    assert_eq!(redactor.text(secrets), expected);
    let harmless = "${SET} ${no} ${no}${SET} Bearer ${no}";
    assert_eq!(redactor.text(harmless), harmless, "the names of variables are not secrets");
}

#[test]
fn names_of_fields_stay_unless_they_are_certainly_secrets() {
    let redactor = of(&[("MY_TOKEN", "plantedtoken-42"), ("WORD_PASSWORD", "timetable")]);
    let value = json!({
        "timetable": "timetable",
        "plantedtoken-42": ["plantedtoken-42", 1],
        "sk-ant-0123456789abcdef": true,
        "sk-ant-0123456789abcdee": false,
    });
    let expected = json!({
        "timetable": "[redacted WORD_PASSWORD]",
        "[redacted MY_TOKEN]": ["[redacted MY_TOKEN]", 1],
        "[redacted]": false,
        "[redacted] (2)": true,
    });
    assert_eq!(redactor.value(value), expected);
}

#[test]
fn a_secret_that_contains_another_goes_as_a_whole() {
    let redactor = of(&[("A_KEY", "planted-secret-1"), ("B_KEY", "planted-secret-1-longer")]);
    assert_eq!(
        redactor.text("key planted-secret-1-longer, planted-secret-1."),
        "key [redacted B_KEY], [redacted A_KEY]."
    );
    let mut stream = StreamRedactor::new(redactor);
    let returned =
        ["planted-secret-1", "-longer"].map(|piece| stream.push(piece)).concat() + &stream.finish();
    assert_eq!(returned, "[redacted B_KEY]");
}

/// A text with secrets of every sort.
const MIXED: &str = "it is planted-secret-1, sk-ant-api03-0123456789ab. Bearer abcdef0123456789abc letmeinnow \
                     http://u:hunter2hunter2@h/ -----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY----- 5%7 planted%2dsecret%2D%31%20letmeinnow%3b \
                     dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2dnZ2cGxhbnRlZC1z\nZWNyZXQtMXd3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3dw==\n \
                     {\"u\":\"planted\\u002Dsecret-\\u0031\\u00f6\", \"v\":\"{\\\"w\\\":\\\"letmei\\\\u006enow\\\"}\", \"x\":\"cGxhbnRlZC1z\\r\\nZWNyZXQtMQ==\"} end";

fn mixed() -> Redactor {
    of(&[("A_KEY", "planted-secret-1"), ("WORD_PASSWORD", "letmeinnow")])
}

#[test]
fn a_stream_holds_back_no_more_than_may_be_a_secret() {
    let mut stream = StreamRedactor::new(mixed());
    let rows = [
        ("xyz; ", "xyz; "),
        ("pla", ""),
        ("net, ", "planet, "),
        ("let", ""),
        ("ter", "letter"),
        (" on https:", " on https:"),
        ("//a.org", ""),
        ("/x sk", "//a.org/x sk"),
        ("-ant-0123456789abc", ""),
        (".", "[redacted]."),
        (" 50% is%2", " 50% is"),
        ("0%7", "%20"),
        ("0lanted%2dsecret%2", ""),
        ("D", ""),
        ("%31!", "[redacted A_KEY]!"),
    ];
    for (piece, certain) in rows {
        assert_eq!(stream.push(piece), certain, "after {piece:?}");
    }
    assert_eq!(stream.finish(), "");
}

#[test]
fn a_piece_that_follows_what_is_held_is_searched_however_long_it_is() {
    let mut stream = StreamRedactor::new(mixed());
    let long = format!("{}planted-se", "x ".repeat(40_000));
    let given = [stream.push("p"), stream.push(&long), stream.push("cret-1.")];
    assert_eq!(given.map(|text| text.len()), [0, 80_001, "[redacted A_KEY].".len()]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn long_pieces_of_a_text_give_what_the_whole_gives(
        sizes in prop::collection::vec(1..200_usize * 1024, 1..8),
        shift in 0..100_usize,
    ) {
        let line = |number: usize| {
            let filler = "=".repeat(number * 7 % 61);
            format!("{number}{filler} planted-secret-1 {{\"u\":\"plan\\u0074ed\\u002Dsecret-1\"}} cGxhbnRlZC1z\\nZWNyZXQtMQ==\n")
        };
        let text = " ".repeat(shift) + &(0..3_000).map(line).collect::<String>();
        let redactor = mixed();
        let mut stream = StreamRedactor::new(redactor.clone());
        let (mut rest, mut streamed) = (text.as_str(), String::new());
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            streamed.push_str(&stream.push(piece));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        streamed.push_str(&stream.finish());
        // Not compared by `assert_eq`, which would print both.
        prop_assert!(streamed == redactor.text(&text));
        prop_assert!(!streamed.contains("ecret-1"));
    }
}

proptest! {
    #[test]
    fn the_pieces_of_a_text_give_what_the_whole_gives(
        mut cuts in prop::collection::vec(0..=MIXED.len(), 0..12),
        extra in "[a-z :/.@-]{0,20}",
    ) {
        let text = format!("{extra}{MIXED}{extra}");
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts {
            pieces.push(text[from..cut.max(from)].to_owned());
            from = cut.max(from);
        }
        pieces.push(text[from..].to_owned());
        let redactor = mixed();
        let whole = redactor.text(&text);
        let mut stream = StreamRedactor::new(redactor.clone());
        let streamed: String = pieces.iter().map(|piece| stream.push(piece)).collect();
        let mut streamed = streamed + &stream.finish();
        // The first letters of a shape are not buffered.
        for start in ["sk-", "sk", "s"] {
            streamed = streamed.replace(&format!("{start}[redacted]"), "[redacted]");
        }
        prop_assert_eq!(streamed, whole.clone());
        redactor.pieces(&mut pieces);
        prop_assert_eq!(pieces.concat(), whole);
    }
}

proptest! {
    #[test]
    fn what_a_shape_takes_out_of_a_command_is_no_command(
        parts in prop::collection::vec(prop::sample::select(PARTS), 0..12),
    ) {
        let text = parts.concat();
        for range in shapes::find(&text) {
            let hidden = &text[range.clone()];
            prop_assert!(!hidden.contains(|c: char| c.is_whitespace() || "|&;<>()$`\\\"'".contains(c)), "{hidden}");
            let is_word = text[..range.start].ends_with(ends_a_word) && text[range.end..].starts_with(ends_a_word);
            prop_assert!(!is_word || !COMMANDS.contains(&hidden), "{hidden} of {text}");
        }
    }
}

fn ends_a_word(c: char) -> bool {
    c.is_whitespace() || "|&;".contains(c)
}

/// What people must see.
const COMMANDS: &[&str] = &["sh", "reboot", "python3", "touch PWNED", "/srv/someone1990/project-2024-data"];

/// What a command is made of that is to look like a secret.
const PARTS: &[&str] = &[
    "sh",
    "reboot",
    "python3",
    "touch PWNED",
    "/srv/someone1990/project-2024-data",
    " ",
    "\n",
    "\\n",
    "|",
    ";",
    "&",
    "&&",
    "\"",
    "'",
    "$(",
    ")",
    "`",
    ":",
    "@",
    "http://a:",
    "@github.com",
    "-----BEGIN PRIVATE KEY-----",
    "-----END PRIVATE KEY-----",
    LINE,
    "Bearer ",
    "basic ",
    "Authorization: ",
    "dXNlcjpodW50ZXIy",
    "sk-",
    "eyJ",
    "AKIA",
];
