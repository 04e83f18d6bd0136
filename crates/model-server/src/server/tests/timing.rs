//! When each event goes out, on a paused clock: the steps are executed without a connection.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;
use serde_json::json;
use tokio::time::Instant;

use super::client::ask;
use crate::anthropic::Anthropic;
use crate::plan::plan;
use crate::server::send::send;
use crate::server::shared::{Exchange, Shared};
use crate::wire::Wire;
use crate::{Block, Scenario, Turn};

/// The milliseconds at which the head and each further piece come, and whether the body came to its end.
async fn times(scenario: Scenario) -> (Vec<u128>, bool) {
    let turn = scenario.turns[0].clone();
    let request = Anthropic.view(&ask("x")).unwrap();
    let plan = plan(&Anthropic, &scenario, &turn, &request, "main_1");
    let start = Instant::now();
    let exchange = Exchange::new(Arc::new(Shared::new(scenario, None)), 1);
    let body: Body = send(plan, exchange).await.into_body();
    let mut times = vec![start.elapsed().as_millis()];
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        if piece.is_err() {
            times.push(start.elapsed().as_millis());
            return (times, false);
        }
        times.push(start.elapsed().as_millis());
    }
    (times, true)
}

#[tokio::test(start_paused = true)]
async fn first_byte_gaps_and_pauses_add_up() {
    let blocks = vec![Block::Text { text: "ab".to_owned(), chunks: 2 }, Block::Pause { ms: 1000 }];
    let turn = Turn { blocks, first_ms: Some(500), ..Turn::default() };
    let scenario = Scenario { chunk_ms: 10, ..Scenario::of([turn]) };
    // The head; start, ping, block start, two deltas, block stop; the pause; the last two.
    let expected = vec![500, 500, 510, 520, 530, 540, 550, 1560, 1570];
    assert_eq!(times(scenario).await, (expected, true));
}

#[tokio::test(start_paused = true)]
async fn a_turns_own_gap_wins() {
    let turn = Turn { chunk_ms: Some(3), ..Turn::default() };
    let scenario = Scenario { chunk_ms: 10, ..Scenario::of([turn]) };
    assert_eq!(times(scenario).await, (vec![0, 0, 3, 6, 9], true));
}

#[tokio::test(start_paused = true)]
async fn a_stall_ends_at_its_limit_and_pings_until_then() {
    let turn = Turn { stall_after: Some(1), stall_ping_ms: Some(400), ..Turn::text("a") };
    let scenario = Scenario { hold_limit_ms: 1000, ..Scenario::of([turn]) };
    assert_eq!(times(scenario).await, (vec![0, 0, 400, 800, 1000], false));
}

#[tokio::test(start_paused = true)]
async fn a_hang_ends_at_its_limit() {
    let scenario = Scenario { hold_limit_ms: 1000, ..Scenario::of([Turn { hang: true, ..Turn::default() }]) };
    assert_eq!(times(scenario).await, (vec![1000, 1000], false));
}

#[tokio::test(start_paused = true)]
async fn pauses_delay_a_whole_body_too() {
    let turn = Turn { blocks: vec![Block::Pause { ms: 70 }], first_ms: Some(30), ..Turn::default() };
    let mut body = ask("x");
    body["stream"] = json!(false);
    let request = Anthropic.view(&body).unwrap();
    let scenario = Scenario::of([turn.clone()]);
    let plan = plan(&Anthropic, &scenario, &turn, &request, "main_1");
    assert_eq!(plan.first, Duration::from_millis(100));
}
