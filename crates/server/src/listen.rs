//! Listening: a bounded number of connections, each with a time to send its head, and an end that lets answers finish.

use std::{io, sync::Arc};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{App, ServerOptions, limits};

/// Serves until `end` is cancelled. Event streams and sockets end then at once, other answers within a few seconds.
/// Sessions are not touched: their processes run on.
pub async fn serve(listener: TcpListener, options: ServerOptions, end: CancellationToken) -> io::Result<()> {
    let app = App::new(options, end.clone());
    let routes = app.router();
    accept(listener, app, routes, end).await
}

/// Accepts connections and answers them by these routes until `end` is cancelled.
pub(crate) async fn accept(
    listener: TcpListener,
    app: App,
    routes: Router,
    end: CancellationToken,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let connections = TaskTracker::new();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = end.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if is_of_connection(&error) => continue,
            // No descriptor is left, most likely: one may be soon.
            Err(_) => {
                tokio::time::sleep(limits::PAUSE).await;
                continue;
            }
        };
        let (routes, end, metrics) = (routes.clone(), end.clone(), app.clone());
        connections.spawn(async move {
            let _permit = permit;
            let _counted = metrics.metrics.connected();
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(limits::HEAD);
            let connection =
                http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).with_upgrades();
            tokio::pin!(connection);
            // A client that goes away in the middle is its own affair.
            tokio::select! {
                _ = connection.as_mut() => {}
                () = end.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = tokio::time::timeout(limits::FAREWELL, connection).await;
                }
            }
        });
    }
    connections.close();
    let _ = tokio::time::timeout(limits::FAREWELL, connections.wait()).await;
    Ok(())
}

/// Errors of a connection that was lost before it was accepted.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}
