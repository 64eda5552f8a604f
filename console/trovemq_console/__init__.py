"""TroveMQ's console: the cluster in a browser, as a client of the public SDK with its user's rights.

- `command`    the command line; starts the server
- `app`        puts everything together: routes, the guard, the sampler, pages for errors
- `pages`      one module a subject: reads with the SDK, gives the values to a template
- `guard`      Host, Origin, sessions and headers, before any page
- `finding`    the meanings that a text of the search box may have, asked in turn
- `rendering`  templates, and how values look
- `sampling`   rates and histories, from looks at the counters
- `cluster`    the connection, and questions that several pages have in common
- `bodies`, `charts`, `settings`, `sessions`   views of a body; SVG; options; cookies

Pages are made here and work without scripts; `static/console.js` adds refreshing, keys and the live tail.
Nothing is loaded from elsewhere. Text of messages goes through the templates' escaping, always.
"""
