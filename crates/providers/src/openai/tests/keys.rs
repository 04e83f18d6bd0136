//! A planted key leaves the process in the head of the request and nowhere else, whatever happens.

use inspan_protocol::ErrorCode;
use inspan_testkit::{HttpError, ModelServer, Scenario, Turn};
use serde_json::json;

use super::server::{PLANTED, World, raw, say};

fn repeats_the_key() -> Vec<Turn> {
    let words = format!("Incorrect API key provided: {PLANTED}, Bearer {PLANTED}");
    let error =
        |status| Turn::error(status).http_error.map(|error| HttpError { message: words.clone(), ..error });
    let page = |status| error(status).map(|error| HttpError { body: Some(json!(words)), ..error });
    [error(401), error(400), error(529), page(502)]
        .map(|error| Turn { http_error: error, ..Turn::default() })
        .into()
}

#[tokio::test]
async fn no_artefact_holds_the_key() {
    for turn in repeats_the_key() {
        let scenario = Scenario { aux_detect: false, ..Scenario::of([turn]) };
        let server = ModelServer::start(scenario).unwrap();
        let world = World::new(&server.base_url());
        let context = world.context();
        let turn = world.turn(json!({ "prompt": "go" })).await;
        let artefacts = format!("{:?}{:?}{}{context:?}", turn, world.provider, world.kept());
        assert!(artefacts.contains("redacted") && !artefacts.contains(PLANTED), "{artefacts}");
        assert!(!serde_json::to_string(&turn.1.unwrap_err()).unwrap().contains(PLANTED));
        let request = &server.requests()[0];
        assert_eq!(request.headers["authorization"], inspan_testkit::SECRET_PRESENT);
        assert!(!request.body.to_string().contains(PLANTED));
    }
}

#[tokio::test]
async fn an_address_with_a_password_is_not_shown() {
    let address = raw(|mut stream| say(&mut stream, "nonsense\r\n\r\n"))
        .replace("http://", "http://user:planted-pass@");
    let turn = World::new(&address).turn(json!({ "prompt": "go" })).await;
    assert!(!format!("{turn:?}").contains("planted-pass"), "{turn:?}");
    assert_eq!(turn.1.unwrap_err().code, ErrorCode::Protocol);
}
