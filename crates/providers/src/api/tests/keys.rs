//! A planted key leaves the process in the head of the request and nowhere else, whatever happens.

use inspan_model_server::{HttpError, Turn};
use inspan_protocol::ErrorCode;
use serde_json::json;

use super::harness::{Harness, Vendor, scripted};
use crate::raw_server::{raw, say};

fn repeats_the_key<R: Vendor>() -> Vec<Turn> {
    let (_, planted) = R::KEY;
    let words = format!("{} {planted}, Bearer {planted}", R::REPEATS);
    let error =
        |status| Turn::error(status).http_error.map(|error| HttpError { message: words.clone(), ..error });
    let page = |status| error(status).map(|error| HttpError { body: Some(json!(words)), ..error });
    [error(401), error(400), error(529), page(502)]
        .map(|error| Turn { http_error: error, ..Turn::default() })
        .into()
}

pub(crate) async fn no_output_holds_the_key<R: Vendor>() {
    let (_, planted) = R::KEY;
    for turn in repeats_the_key::<R>() {
        let server = scripted([turn]);
        let harness = Harness::<R>::new(&server.base_url());
        let context = harness.context();
        let turn = harness.turn(json!({ "prompt": "go" })).await;
        let artefacts = format!("{:?}{:?}{}{context:?}", turn, harness.provider, harness.stored());
        assert!(artefacts.contains("redacted") && !artefacts.contains(planted), "{artefacts}");
        assert!(!serde_json::to_string(&turn.1.unwrap_err()).unwrap().contains(planted));
        let request = &server.requests()[0];
        assert_eq!(request.headers[R::HEADER.0], inspan_model_server::SECRET_PRESENT);
        assert!(!request.body.to_string().contains(planted));
    }
}

pub(crate) async fn an_address_with_a_password_is_not_shown<R: Vendor>() {
    let address = raw(|mut stream| say(&mut stream, "nonsense\r\n\r\n"))
        .replace("http://", "http://user:planted-pass@");
    let turn = Harness::<R>::new(&address).turn(json!({ "prompt": "go" })).await;
    assert!(!format!("{turn:?}").contains("planted-pass"), "{turn:?}");
    assert_eq!(turn.1.unwrap_err().code, ErrorCode::Protocol);
}
