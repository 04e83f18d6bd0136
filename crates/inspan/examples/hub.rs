//! A hub by itself: events, filters, commands and a question: `cargo run -p inspan --example hub`. `docs/hub.md`
//! explains it.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::{error::Error, sync::Arc};

use inspan::{Envelope, Event, Filter, Hub, LogLevel, PromptKind, RandomIds, SessionId, SystemClock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let hub = Hub::new(SessionId::from("demo-1"), Arc::new(SystemClock), Arc::new(RandomIds::new()));
    let mut all = hub.subscribe(Filter::all());

    if let Err(refused) = hub.send("Is anybody there?") {
        println!("{refused}");
    }
    hub.start_session();

    let answering = hub.clone();
    let answer = move |envelope: &Arc<Envelope>| {
        if let Event::SessionPrompt(prompt) = &envelope.event {
            // It fails if another reply was faster.
            let _ = answering.reply(prompt.prompt_id.clone(), "yes", None);
        }
    };
    let observer = hub.observe(Filter::name("session:prompt"), Arc::new(answer));
    let reply = hub.ask(hub.new_prompt(PromptKind::Input, "Shall we go on?")).await?;
    println!("the answer is {}", reply.content);
    drop(observer);

    let mut messages = hub.subscribe(Filter::name("session:message"));
    println!("{} listener", hub.send("Then let us go.")?);
    if let Some(envelope) = messages.next().await
        && let Event::SessionMessage { content, .. } = &envelope.event
    {
        println!("heard: {content}");
    }

    let (level, message) = (LogLevel::Info, "the oxen are ready".to_owned());
    hub.emit(Event::Log { level, message, fields: serde_json::Map::new() });
    hub.end_session();
    while let Some(envelope) = all.try_next() {
        println!("{} {}", envelope.seq, envelope.event.name());
    }
    Ok(())
}
