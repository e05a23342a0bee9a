"""The Agent Gateway: asks who may, routes to the active revision, relays.

One process in front of every Agent of one machine. It is stateless: a route document that Compute writes says where the active revision
is, the API's private listener says whether a service key may use an Agent, and everything else is bytes in flight. It has no database
and nothing of one Agent reaches another's connection.

Modules, from the outside in: :mod:`main` composes; :mod:`front` speaks HTTP; :mod:`service` decides; :mod:`access` asks and remembers;
:mod:`switch` keeps one revision at a time; :mod:`routes` reads documents; :mod:`upstream` dials; :mod:`relay` splices;
:mod:`conversation` runs a turn for people with curl; :mod:`control` tells Compute whether a switch is complete.
"""
