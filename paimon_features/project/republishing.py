"""What lies only in the online store, besides the records of views: published again if it is lost.

The definitions' bundle and the models in production are written by ``apply`` and ``models
promote``, which are not there when a store loses its data. A materializer is: it rebuilds the views
then, and runs this next to it.
"""

from __future__ import annotations

from paimon_features.online.store.bundles import ONLINE
from paimon_features.project.project import Project


class Republisher:
    """Publishes a project's bundle and models again where the online store has lost them.

    The bundle is the one that was in the store last, or, if it was lost before this began, that of
    the definitions, if all of them are applied. The models are those of the lake.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._place = project.bundle_at(ONLINE)
        self._bundle: bytes | None = None
        self._bundle_stamp = ""
        self._models = project.models.place if project.models.place.is_online else None
        # what was never there is published only if a server would read it
        self._wants_bundle = self._wants_models = project.config.serve.bundle == ONLINE

    def check(self) -> list[str]:
        """Look once, and publish what is lost; returns what was published.

        Raises
        ------
        OnlineStoreError, ConfigurationError, DefinitionError, TableError, ModelError
            If something cannot be read or published; the next check tries again.
        """
        published = []
        # models first: a server that starts with the bundle finds them
        if self._models is not None:
            if self._models.stamp():
                self._wants_models = True
            elif self._wants_models:
                self._wants_models = bool(self._project.models.names())
                if self._wants_models:
                    self._project.models.publish()
                    published.append(str(self._models))
        stamp = self._place.stamp()
        if stamp:
            if stamp != self._bundle_stamp:
                self._bundle, self._bundle_stamp = self._place.document.read(), stamp
        elif self._bundle is not None:
            self._place.document.replace(None, self._bundle)
            published.append(str(self._place))
        elif self._wants_bundle:
            if self._project.plan().is_empty:
                self._project.publish_bundle(ONLINE)
                published.append(str(self._place))
            self._wants_bundle = False
        return published
