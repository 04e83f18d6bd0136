//! What reaches the model of what is asked, and what is refused before anybody is asked.

use inspan_protocol::ErrorCode;

use super::answers::WORDS;
use crate::finding::{Proof, holds, same};
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
        same("the requests of the model", &requests.len(), &(index + 1))?;
        let texts = texts(&requests[index]);
        holds(texts.contains(&prompt), || format!("the model does not hear `{prompt}` as it is written"))?;
        let drawn_in = texts.iter().any(|text| text.contains(INSIDE));
        holds(!drawn_in, || format!("the model hears a file beside `{prompt}`"))?;
    }
    Ok(())
}

pub(super) async fn empty(scene: &Scene) -> Proof {
    for prompt in ["", " \n"] {
        let said = scene.turn(Ask::new(prompt)).await?;
        same("the code", &said.error()?.code, &ErrorCode::ConfigInvalid)?;
    }
    same("the requests of the model", &scene.requests().len(), &0)
}

pub(super) async fn unknown_option(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS).option("noSuchOption", 1)).await?;
    let error = said.error()?;
    same("the code", &error.code, &ErrorCode::ConfigInvalid)?;
    holds(error.message.contains("noSuchOption"), || "the error does not name the option".to_owned())?;
    same("the requests of the model", &scene.requests().len(), &0)
}
