"""TroveMQ's console: the cluster in a browser, as a client of the public SDK with its user's rights.

- `command`    the command line; starts the server
- `app`        wires the parts: routes, the guard, the sampler, pages for errors
- `pages`      one module per subject: reads with the SDK, passes the values to a template
- `guard`      Host, Origin, sessions and headers, before any page
- `finding`    the possible meanings of a text in the search box, tried in turn
- `rendering`  templates, and the format of values
- `sampling`   rates and histories, from samples of the counters
- `cluster`    the connection, and requests that several pages share
- `bodies`, `charts`, `settings`, `sessions`   views of a body; SVG; options; cookies

Pages are rendered here and work without scripts; `static/console.js` adds refreshing, keys and the live tail.
Nothing is loaded from other sites. The templates escape all text of messages.
"""
