//! `packlight serve`: a bundle on loopback.

use packlight_http::Server;
use packlight_pack::media_type;

use crate::args::ServeArgs;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<bool> {
    let server = Server::bind(&args.bundle, args.port, media_type)?;
    println!("{}", server.url());
    eprintln!("serving `{}`; Ctrl-C ends it", args.bundle.display());
    server.run();
    Ok(true)
}
