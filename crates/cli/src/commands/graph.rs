//! `inspan graph FILE`: a flow as a picture.

use super::{flow, registries};
use crate::{
    args::{GraphArgs, GraphFormat},
    drawing::{Drawing, dot, mermaid, svg},
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    terminal,
};

pub(super) fn run(args: &GraphArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let nodes = registries::nodes(&registries::providers());
    let loaded = flow::read_with_settings(&args.file, invocation)?;
    let compiled = flow::ready(&loaded, &nodes, invocation)?;
    let drawing = Drawing::from(&compiled.graph);
    match (invocation.form, args.format) {
        (Form::Json, _) => invocation.json(&drawing),
        (Form::Text, format) => {
            let draw = match format {
                GraphFormat::Mermaid => mermaid,
                GraphFormat::Dot => dot,
                GraphFormat::Svg => svg,
            };
            terminal::data(&draw(&drawing));
        }
    }
    Ok(Exit::Success)
}
