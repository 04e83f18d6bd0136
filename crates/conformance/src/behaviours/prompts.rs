//! What reaches the model of what is asked, and what is refused before anybody is asked.

use inspan_protocol::ErrorCode;

use super::answers::WORDS;
use crate::finding::{Deviation, Proof, check_code, check_requests, holds};
use crate::scene::{Ask, Scene, texts};

/// Texts that programs take for something else, each in a conversation of its own.
const AS_WRITTEN: [&str; 3] = ["/nosuch words", "/compact read @note.txt", "@note.txt and /this"];
/// What stands in the file that the texts name.
const INSIDE: &str = "INSIDE-THE-NOTE";

pub(super) async fn as_written(scene: &Scene) -> Proof {
    let written = std::fs::write(scene.work().join("note.txt"), INSIDE);
    holds(written.is_ok(), || "a file cannot be written".to_owned())?;
    for (index, prompt) in AS_WRITTEN.into_iter().enumerate() {
        let said = scene.turn(Ask::new(prompt)).await?;
        said.facts()?;
        let requests = scene.requests();
        check_requests(requests.len(), index + 1)?;
        let texts = texts(&requests[index]);
        holds(texts.contains(&prompt), || format!("the model does not receive `{prompt}` as it is written"))
            .map_err(|finding| finding.deviation(Deviation::Prompt))?;
        let drawn_in = texts.iter().any(|text| text.contains(INSIDE));
        holds(!drawn_in, || format!("the model receives a file beside `{prompt}`"))?;
    }
    Ok(())
}

pub(super) async fn empty(scene: &Scene) -> Proof {
    for prompt in ["", " \n"] {
        let said = scene.turn(Ask::new(prompt)).await?;
        check_code(said.error()?, ErrorCode::ConfigInvalid)?;
    }
    check_requests(scene.requests().len(), 0)
}

pub(super) async fn unknown_option(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS).option("noSuchOption", 1)).await?;
    let error = said.error()?;
    check_code(error, ErrorCode::ConfigInvalid)?;
    holds(error.message.contains("noSuchOption"), || "the error does not name the option".to_owned())?;
    check_requests(scene.requests().len(), 0)
}
