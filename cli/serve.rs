//! `packlight serve`: a bundle on loopback, with the page that runs it if asked for.

use packlight_http::Server;
use packlight_pack::media_type;

use crate::args::ServeArgs;
use crate::page::Page;
use crate::place;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<bool> {
    let page = args.web.as_ref().map(Page::files).transpose()?;
    let server = Server::bind(&args.bundle, args.port, place::sidecars(), media_type)?;
    println!("{}", server.url());
    eprintln!("serving `{}`; Ctrl-C ends it", args.bundle.display());
    if page.is_some() {
        eprintln!("the address above, opened in a browser, runs it there");
    }
    server.with_page(page.unwrap_or_default()).run();
    Ok(true)
}
